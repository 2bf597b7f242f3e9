#!/bin/bash
# Runs once inside a new host's namespaces, as first child of its PID 1: makes it a machine of its own, then starts sshd.
# hostboot.sh NAME IPV4 IPV6 HOST_FOLDER LAB_FOLDER
set -u
name=$1 ipv4=$2 ipv6=$3 host=$4 lab=$5
exec </dev/null

hostname "$name"
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/sshd /run/lock
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t sysfs -o ro sysfs /sys 2>/dev/null

for file in hosts passwd; do mount --bind "$lab/etc/$file" "/etc/$file"; done
for file in hostname resolv.conf; do [ -e "/etc/$file" ] && mount --bind "$host/etc/$file" "/etc/$file"; done
# one home for all, as on a cluster's shared disk; but the keys and known_hosts are each host's own
mount --bind "$host/ssh" "$lab/home/root/.ssh"

# /opt is the host's own, and outlives a power loss; where the disk cannot carry an overlay, memory does
mkdir -p /opt
if ! mount -t overlay overlay -o "lowerdir=/opt,upperdir=$host/opt.upper,workdir=$host/opt.work" /opt 2>/dev/null; then
    mkdir -p /run/opt && mount -t tmpfs tmpfs /run/opt && mkdir -p /run/opt/upper /run/opt/work
    mount -t overlay overlay -o lowerdir=/opt,upperdir=/run/opt/upper,workdir=/run/opt/work /opt
fi

ip link set lo up
for _ in $(seq 500); do ip link show eth0 >/dev/null 2>&1 && break; sleep 0.02; done
ip addr add "$ipv4/16" dev eth0
ip addr add "$ipv6/64" dev eth0 nodad 2>/dev/null # a kernel may have none
ip link set eth0 up

/usr/sbin/sshd -f "$host/etc/sshd_config" -E "$host/log/sshd.log" && touch "$host/up"
