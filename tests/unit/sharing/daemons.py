"""What tests of MPS daemons ask for, and how they wait."""

from __future__ import annotations

from driver.sharing.base import MpsSpec
from tests.unit.sharing.conftest import GPU, OTHER

MI = 1 << 20
UID = "0a5b2c3d-1111-4222-8333-444455556666"
SPEC = MpsSpec(devices=(GPU, OTHER), active_thread_percentage=25, memory_limits={GPU: 512 * MI})
