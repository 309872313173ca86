"""Every Python that starts with this folder on its path does without torch, as if it were not installed."""

import sys


class NoTorch:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


sys.meta_path.insert(0, NoTorch)
