"""The report at the moment at which a node asks for it."""
from . import deliver, report
from .meter import meter


def report_now(save_json=False, filename_prefix=deliver.PREFIX):
    """`report.collect`'s data of the prompt that runs; `report.nothing`'s where none is recorded.

    save_json, filename_prefix: the node's inputs; a file is written at the prompt's end.
    Raises ValueError, in one sentence, for a prefix that no file in the output folder can have, and for a save_json
    that is neither true nor false.
    """
    complaint = deliver.complaint(filename_prefix) or deliver.unclear(save_json)
    if complaint:
        raise ValueError(f"{complaint}.")
    session, lock = meter.session()
    if session is None:
        return report.nothing(meter.why_not())
    with lock:
        session.sample("boundaries")
        session.files.update(deliver.files_wanted(save_json, filename_prefix))
        return report.collect(session)
