"""The subcommands of ``motet`` that train and look after runs. Each is named in ``motet.cli.COMMANDS``."""
