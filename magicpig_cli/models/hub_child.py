"""The child process that downloads a model from the hub; `hub` starts it and reads its one line of JSON.

Run as a script: hub_child.py HUB_ID PLAN_FILE. Writes the number of bytes to fetch into PLAN_FILE,
then prints {"folder": ...} or {"error": kind, "message": ...}.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import sys
from pathlib import Path

# A model's own files at the top of its repository; no pickles, no copies in other formats.
WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt", "tekken.json")
UNWANTED = ("*/*", "consolidated*", "training_args*")


def main(hub_id: str, plan_file: str) -> dict[str, str]:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        info = HfApi().model_info(hub_id, files_metadata=True, timeout=_silence_s())
        n_bytes = sum(f.size or 0 for f in info.siblings or () if is_wanted(f.rfilename))
        Path(plan_file).write_text(str(n_bytes))
        folder = snapshot_download(hub_id, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED))
    except GatedRepoError as error:
        return {"error": "gated", "message": str(error)}
    except (RepositoryNotFoundError, HFValidationError) as error:
        return {"error": "missing", "message": str(error)}
    except OfflineModeIsEnabled as error:
        return {"error": "offline", "message": str(error)}
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        kind = "gated" if status in (401, 403) else "unreachable"
        return {"error": kind, "message": str(error)}
    except OSError as error:
        kind = "full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "unreachable"
        return {"error": kind, "message": str(error)}
    except Exception as error:  # its HTTP library has errors of its own, which differ between releases
        if "Timeout" in type(error).__name__:
            return {"error": "unreachable", "message": "it did not answer in time"}
        return {"error": "unreachable", "message": f"{type(error).__name__}: {error}"}
    return {"folder": folder}


def _silence_s() -> float:
    """Seconds to wait for the hub's first answer: the setting of its own library, or patience enough."""
    try:
        return float(os.environ["HF_HUB_ETAG_TIMEOUT"])
    except (KeyError, ValueError):
        return 15.0


def is_wanted(name: str) -> bool:
    matches = (fnmatch.fnmatch(name, pattern) for pattern in WANTED)
    return any(matches) and not any(fnmatch.fnmatch(name, pattern) for pattern in UNWANTED)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
