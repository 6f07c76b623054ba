"""The part of a shell script that gives a root file system of a test its kernel's directories."""

# In the directory that holds ``root``, in a mount namespace of its own.
KERNELS_DIRECTORIES = """\
mount -t proc proc root/proc
mount -t sysfs sysfs root/sys
mount -t tmpfs -o mode=755 tmpfs root/run
mount -t tmpfs -o mode=755 tmpfs root/dev
for device in null zero full random urandom tty; do
    touch "root/dev/$device"; mount --bind "/dev/$device" "root/dev/$device"
done
mkdir root/dev/pts root/dev/shm root/old
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs root/dev/shm
ln -s pts/ptmx root/dev/ptmx; ln -s /proc/self/fd root/dev/fd
"""
