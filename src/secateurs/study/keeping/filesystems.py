"""File systems on which a store cannot be: SQLite's locks are not safe over a network."""

from pathlib import Path

from secateurs.errors import StoreError

NETWORKED = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ncpfs",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "gfs2",
)


NETWORKED_FUSE = (
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.gcsfuse",
    "fuse.ceph",
)


def refuse_network(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """SQLite's locks are not safe on network file systems: refuse them."""
    kind = filesystem(folder, mounts)
    if kind in NETWORKED or kind in NETWORKED_FUSE:
        raise StoreError(
            f"{folder} is on a network file system ({kind}), where a crash can damage the store. "
            f"Put it on a local "
            "disk with --store; several machines work together through `--engine ray`, without a "
            "shared folder."
        )


def filesystem(folder: Path, mounts: Path) -> str:
    """The kind of file system this folder is on; "" where it cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    place, best, kind = folder.resolve(), -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        point = (
            # A space in a mount point is written as \040.
            Path(fields[4].encode().decode("unicode_escape"))
            if len(fields) > 4
            else Path("/nowhere")
        )
        # The longest mount point counts; of two at one place
        # the later one, which hides the other.
        if (place == point or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0] if after else ""
    return kind
