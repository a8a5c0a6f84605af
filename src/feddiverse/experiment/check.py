"""Names that nothing answers to, found before the first of many runs and not hours later."""

from feddiverse.errors import UserError
from feddiverse.experiment.config import Config, settings
from feddiverse.server import estimation, selection
from feddiverse.splits import parse, split_of


def check(config: Config) -> None:
    """Refuse a federation, selector, estimator or model that does not exist, and a table without the columns it needs.
    Data may still be missing: other runs of a study may do without."""
    _check_federation(config.federation, config.seed)
    known = settings(config, num_classes=2, num_attributes=2, num_selected=1)
    selection.build(config.selector, known)
    estimation.build(config.estimator, known)
    if config.model not in {"cnn", "mobilenet"}:
        from feddiverse.models import custom

        custom.factory(config.model)


def _check_federation(name: str, seed: int) -> None:
    has_own_clients = name.startswith("table:")
    if not has_own_clients:
        split_of(name, seed)
    source = name if has_own_clients else parse(name)[1]
    if source.startswith("table"):
        from feddiverse.data.table import path_of, read_table

        path = path_of(source)
        if read_table(path, seed).clients is None and has_own_clients:
            raise UserError(
                f"{path} has no column 'client': deal it to clients by a split, such as 'gsc:table:{path}'."
            )
