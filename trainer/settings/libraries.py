"""Libraries that only an extra of the package brings."""

import importlib

from longmix.data_prep.errors import UserError, reason_of


def require_libraries(what: str, names: tuple[str, ...], extra: str) -> None:
    """Import the libraries that something needs.

    Args:
        what: what needs them, the beginning of the message, e.g. "--onnx needs".
        extra: what brings them, as in longmix[extra].

    Raises:
        UserError: one is not installed, or is and cannot be imported.
    """
    missing, broken = [], []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # what a library raises when it is imported is its own affair
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                missing.append(name)
            else:
                broken.append(f"{name}, which is installed and cannot be imported ({reason_of(error)[:200]})")
    if missing or broken:
        raise UserError(f"{what} {', '.join(missing + broken)}: pip install 'longmix[{extra}]'")
