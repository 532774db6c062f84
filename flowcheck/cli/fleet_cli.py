"""`flowcheck fleet plan` and `figures`: their arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import Json, read_on, svg_file
from flowcheck.ops.command_app import CommandApp

MORE = read_on("flowcheck/fleet/README.md")

app = CommandApp(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog=MORE,
    help="""Plan several checkpoint nodes: where copies go, and when all of them survive.

* `flowcheck fleet plan --nodes 16 --replication-factor 2` - the exact probability for any number of
  nodes lost

* `flowcheck fleet figures --svg gemini.svg` - Gemini's figures on placement and recovery, computed
""",
)


@app.command("plan", epilog=MORE)
def fleet_plan(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.toml]",
            help="Fleet file (TOML): nodes, their failure domains, and how shards are kept.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes, without a file that lists them.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="One of group, ring, mixed, jump; default: group where copies divide the nodes, "
            "else mixed."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="Copies of each shard, its own included; default 2.")
    ] = None,
    replication_jump: Annotated[
        int | None, typer.Option(help="Nodes from one copy to the next, with the strategy jump.")
    ] = None,
    data_blocks: Annotated[
        int | None, typer.Option(help="Erasure code instead of copies: blocks that hold a shard.")
    ] = None,
    parity_blocks: Annotated[
        int | None, typer.Option(help="Blocks beside those, of which as many may be lost.")
    ] = None,
    lost: Annotated[
        list[int] | None,
        typer.Option(metavar="F", help="Tell of F nodes lost together; repeatable."),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            callback=svg_file, metavar="FILE", help="Write a drawing: survival against nodes lost."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan where copies of each node's shard go, and with what probability all shards survive.

    The probability is exact, for every set of nodes of that size as likely as another, and stands
    beside Gemini's bound. With racks, power feeds and switches in the file, copies of a shard are
    kept apart, and where that is impossible the plan says by which numbers.

    Exit code 0: planned; 2: the file or an option is refused.

    Examples: `flowcheck fleet plan --nodes 16 --replication-factor 2 --strategy ring`,
    `flowcheck fleet plan fleet.toml --data-blocks 4 --parity-blocks 2 --lost 3`
    """
    from flowcheck.errors import ConfigError
    from flowcheck.findings.catalog.refused_settings import ONE_OF
    from flowcheck.fleet.copy_placement import Strategy
    from flowcheck.fleet.fleet_file import RedundancyConfig
    from flowcheck.ops.fleet import fleet_plan_command as verb
    from flowcheck.ops.fleet.planned_fleet import FleetRequest

    known = tuple(one.value for one in Strategy)
    if strategy is not None and strategy not in known:
        raise ConfigError("--strategy", strategy, ONE_OF(known))
    stated = RedundancyConfig(
        strategy=None if strategy is None else Strategy(strategy),
        replication_factor=replication_factor,
        replication_jump=replication_jump,
        data_blocks=data_blocks,
        parity_blocks=parity_blocks,
    )
    asked = FleetRequest(file=file, nodes=nodes, stated=stated, lost=tuple(lost or ()))
    raise typer.Exit(verb.run(asked, svg=svg, as_json=as_json))


@app.command("figures", epilog=MORE)
def fleet_figures(
    svg: Annotated[
        Path, typer.Option(callback=svg_file, metavar="FILE", help="File for the drawing.")
    ],
    as_json: Json = False,
) -> None:
    """Draw figures 9, 11 and 14 of the Gemini paper from its formulas, and exact values beside.

    Exit code 0: drawn; 2: the file cannot be written, or is no picture.

    Example: `flowcheck fleet figures --svg gemini.svg`
    """
    from flowcheck.ops.fleet import fleet_plan_command as verb

    raise typer.Exit(verb.draw_figures(svg, as_json=as_json))
