"""How the settings make the charts of GPUs' health: rules, quiet time, and the file that outlives the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.charts import Charts
from driver.health_memory import HealthMemory
from driver.model.health_rules import Rules, decode_rules

if TYPE_CHECKING:
    from driver.settings import Settings


def make_charts(settings: Settings, boot_id: str) -> Charts:
    """Make the charts of this node's GPUs.

    :raises InvalidValueError: the rules file is bad.
    """
    rules = Rules(serious=settings.unhealthy_effect)
    file = settings.health_rules
    if file is not None:
        from driver.yaml_file import load_yaml, read_text

        rules = decode_rules(load_yaml(read_text(file), str(file)), str(file), rules)
    return Charts(rules, quiet=settings.xid_quiet_time, memory=HealthMemory(settings.state / "health.json", boot_id))
