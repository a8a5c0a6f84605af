"""Names that nothing answers to, found before the first of many runs and not hours later."""

from feddiverse.experiment.config import Config, settings
from feddiverse.server import estimation, selection
from feddiverse.splits import split_of


def check(config: Config) -> None:
    """Refuse a federation, selector, estimator or model that does not exist. Data may still be missing: other runs
    of a study may do without."""
    split_of(config.federation, config.seed)
    known = settings(config, num_classes=2, num_attributes=2, num_selected=1)
    selection.build(config.selector, known)
    estimation.build(config.estimator, known)
    if config.model not in {"cnn", "mobilenet"}:
        from feddiverse.models import custom

        custom.factory(config.model)
