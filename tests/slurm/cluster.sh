#!/usr/bin/env bash
# A real SLURM of one node on this machine, for tests/stages/test_slurm.py.
#
#   bash tests/slurm/cluster.sh up      start it and print the line that makes a shell (and the tests) find it
#   bash tests/slurm/cluster.sh down    stop it and delete what it wrote
#
# It needs root and Debian's packages munge, slurmctld, slurmd and slurm-client, and touches nothing outside its folder,
# ${SLURM_TEST_HOME:-/tmp/vlmbatch-test-slurm}. CPUs, memory and GPUs are pretended: nothing is limited, nothing computes.
set -euo pipefail

home=${SLURM_TEST_HOME:-/tmp/vlmbatch-test-slurm}
port=${SLURM_TEST_PORT:-26917}
node=$(hostname -s)
export SLURM_CONF=$home/slurm.conf PATH=$PATH:/usr/sbin

wait_for() { # SECONDS COMMAND...: until the command succeeds
  local left=$(($1 * 5)); shift
  until timeout 5 "$@" >/dev/null 2>&1; do
    left=$((left - 1)); [ "$left" -gt 0 ] || { echo "cluster.sh: gave up on: $*" >&2; return 1; }
    sleep 0.2
  done
}

is_up() { timeout 5 sinfo --noheader --format=%t 2>/dev/null | grep --quiet --extended-regexp '^(idle|mix|alloc)'; }

write_settings() {
  local gpu
  mkdir -p "$home"/{auth,log,spool,state}
  chmod 0755 "$home" "$home/auth"
  for gpu in 0 1 2 3; do
    [ -e "$home/gpu$gpu" ] || mknod "$home/gpu$gpu" c 1 3 # a null device
  done
  printf 'Name=gpu File=%s/gpu[0-3]\n' "$home" >"$home/gres.conf"
  printf 'CgroupAutomount=no\n' >"$home/cgroup.conf"
  cat >"$SLURM_CONF" <<CONF
ClusterName=vlmbatch
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
# a requeued job starts again as soon as its old credential is void
AuthInfo=socket=$home/auth/socket,cred_expire=5
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
SlurmctldLogFile=$home/log/slurmctld
SlurmdLogFile=$home/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=2
WaitTime=2
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=$node NodeHostname=$node NodeAddr=127.0.0.1 CPUs=64 RealMemory=64000 Gres=gpu:4 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES State=UP
PartitionName=gpu Nodes=ALL State=UP
CONF
}

up() {
  if ! is_up; then
    down
    write_settings
    (umask 077; head -c 128 /dev/urandom >"$home/auth/key")
    munged --force --key-file="$home/auth/key" --socket="$home/auth/socket" --pid-file="$home/auth/munged.pid" \
      --log-file="$home/log/munged" --seed-file="$home/auth/seed"
    wait_for 10 munge --socket="$home/auth/socket" --no-input
    slurmctld -c
    wait_for 30 scontrol ping
    slurmd
    for _ in $(seq 150); do is_up && break; sleep 0.2; done
    is_up || { echo "cluster.sh: the node does not come up" >&2; tail "$home"/log/* >&2; return 1; }
  fi
  echo "export SLURM_CONF=$SLURM_CONF"
}

end() { # PIDFILE NAME: end that very process
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 0
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 0
  kill "$pid"
  for _ in $(seq 50); do
    [ -d "/proc/$pid" ] || return 0
    sleep 0.2
  done
  kill -9 "$pid" 2>/dev/null || true
}

down() {
  [ -d "$home" ] || return 0
  timeout 10 scancel --full --user="$(id -un)" 2>/dev/null || true
  end "$home/slurmd.pid" slurmd
  end "$home/slurmctld.pid" slurmctld
  end "$home/auth/munged.pid" munged
  rm -rf -- "$home"
}

case ${1-} in
  up) up ;;
  down) down ;;
  *) echo "usage: cluster.sh up|down" >&2; exit 2 ;;
esac
