"""What the preflight checks say of the target of some parameters, for `mikit doctor`."""

from mikit.errors import MikitError
from mikit.runs.doctor import Finding
from mikit.settings import Params
from mikit.targets import load_target
from mikit.targets.options import options_of
from mikit.targets.preflight import checks


def check_target(params: Params) -> list[Finding]:
    """Load the target and check it: a finding for each check, up to the first that does not hold."""
    try:
        target = load_target(params.model, params.layer, options_of(params))
        place = (
            f"{target.model_id} on {target.device} in {str(target.model.dtype).removeprefix('torch.')}, {target.sae.id}"
        )
        found = [Finding("target", "ok", place)]
        for check in checks(target, params.feature):
            remedy = "" if check.holds else f"the usual cause is {check.cause}"
            found.append(Finding(check.name, "ok" if check.holds else "missing", check.found, remedy))
    except MikitError as error:
        return [Finding("target", "missing", str(error))]
    return found
