"""A provider of our own on a loopback port: the whole path without a key, without a bill, and with faults on request.

Read in this order: wires/ (what each wire format says), answers.py (what is answered), faults.py (how it
misbehaves), replies.py (a body in, a reply out), server.py (the HTTP around it).
"""
