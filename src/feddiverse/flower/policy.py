"""What a node insists on, whatever the server asks: it must not depend on the server's good will (docs/trust.md).

Node config: `secure-sums=true` answers sums only under masks; `privacy-epsilon=1.0` sends counts with at least that
noise, and nothing that such noise does not cover.
"""

from collections.abc import Mapping
from typing import Any

from feddiverse.errors import UserError
from feddiverse.messages import Reply, Summed, Task
from feddiverse.server.privacy import Privacy

SECURE_SUMS, EPSILON = "secure-sums", "privacy-epsilon"


def insist(task: Task, client: int, node_config: Mapping[str, Any]) -> Task | Reply:
    """The question as this node answers it, or its refusal."""
    hidden = isinstance(task, Summed) and task.bits > 0
    if node_config.get(SECURE_SUMS) and isinstance(task, Summed) and not hidden:
        return Reply(client, failure="its node answers this only as part of a secure sum: set secure_sums to true")
    try:
        return Privacy(epsilon=float(node_config.get(EPSILON, 0.0))).applied(task)
    except UserError as error:
        return Reply(client, failure=f"its node insists on noise: {error}")
