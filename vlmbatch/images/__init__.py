"""Images: bytes in; facts, or new bytes with theirs, out. The only place that loads Pillow, and only when it is needed.

A file travels through the modules in this order::

    sniff       what kind of image the first bytes announce
    jpeg png webp gif tiff bmp bmff jpeg2000    the container: size, orientation, frames, and does it end?
    exif        which way is up, and whether a position is told
    formats     the table of the above
    decode      the pixels, by Pillow or pillow-heif
    facts       inspect(): all of it as ImageFacts
    policy      what the user wants done to the images
    encode      pixels to bytes
    prepare     prepare(): the bytes that are sent
    pixels      as_png(): pixels of a Python program become a file
    thumbs      small pictures for a report; never sent

Everything is pure and safe to call from many threads at once.
"""

from vlmbatch.images.base import MAX_PIXELS, ImageError
from vlmbatch.images.facts import Check, inspect
from vlmbatch.images.pixels import as_png
from vlmbatch.images.policy import ImagePolicy
from vlmbatch.images.prepare import prepare

__all__ = ["MAX_PIXELS", "Check", "ImageError", "ImagePolicy", "as_png", "inspect", "prepare"]
