"""Small sparse networks that come with the package, each with a record of how well it does, and the
check of records that others hand in.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs_lab.zoo.checking import RecordCheck, check
    from secateurs_lab.zoo.page import records_page
    from secateurs_lab.zoo.records import Record, load, names, read_record, record, write_record

__all__ = [
    "Record",
    "RecordCheck",
    "check",
    "load",
    "names",
    "read_record",
    "record",
    "records_page",
    "write_record",
]

open_on_first_use(__name__)
