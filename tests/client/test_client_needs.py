"""The client runs inside the server's image: no packages but three, and of the kit little more than records."""

import json
import subprocess
import sys

IMPORT_ALL = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
import kit.client
for module in pkgutil.iter_modules(kit.client.__path__):
    importlib.import_module(f"kit.client.{module.name}")
import uvloop
new = {name: getattr(sys.modules[name], "__file__", "") or "" for name in set(sys.modules) - before}
site = {name.partition(".")[0] for name, file in new.items() if "site-packages" in file}
print(json.dumps([sorted(site), sorted(name for name in sys.modules if name.startswith("kit"))]))
"""


def test_the_client_needs_three_packages_and_little_of_the_kit() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, timeout=60, check=True)
    packages, modules = json.loads(done.stdout)
    assert set(packages) <= {
        "msgspec",
        "uvloop",
        "httptools",
        "typing_extensions",
    }  # msgspec takes the last if it is there
    assert {name for name in modules if not name.startswith("kit.client")} <= {
        "kit",
        "kit.children",
        "kit.errors",
        "kit.measurements",
    }
