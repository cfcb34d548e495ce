"""How the settings make the charts of GPUs' health: rules, quiet time, and the file that outlives the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.config.plugin_health import NO_WISHES, plugin_rules
from driver.model.health_rules import Rules, decode_rules
from driver.monitor.charts import Charts
from driver.monitor.health_memory import HealthMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.config.plugin_health import HealthFlags
    from driver.settings import Settings


def make_charts(settings: Settings, boot_id: str, rules: Rules) -> Charts:
    """Make the charts of this node's GPUs."""
    return Charts(rules, quiet=settings.xid_quiet_time, memory=HealthMemory(settings.state / "health.json", boot_id))


def rules_by(settings: Settings) -> Callable[[HealthFlags], Rules]:
    """Return what makes the rules of the device plugin's config; what our own file of rules says goes before that.

    :raises InvalidValueError: the rules file is bad.
    """
    file, document = settings.health_rules, None
    if file is not None:
        from driver.yaml_file import load_yaml, read_text

        document = load_yaml(read_text(file), str(file))

    def make(flags: HealthFlags) -> Rules:
        base = plugin_rules(Rules(serious=settings.unhealthy_effect), flags)
        return decode_rules(document, str(file), base)

    make(NO_WISHES)
    return make
