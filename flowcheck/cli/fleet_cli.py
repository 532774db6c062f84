"""`flowcheck fleet`: the arguments and help of its commands."""

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
    help="""Several checkpoint nodes: plan where copies go, and run the chains of all of them.

* `flowcheck fleet check fleet.toml` - the chains of a fleet file, each one's place and job file

* `flowcheck fleet up fleet.toml` - start all of them, on a Ray cluster

* `flowcheck fleet status fleet.toml`, `flowcheck fleet down fleet.toml` - without Ray too

* `flowcheck fleet drill fleet.toml` - what a restore would give and take, tried on the live fleet

* `flowcheck fleet plan --nodes 16 --replication-factor 2` - the exact probability for any number of
  nodes lost

* `flowcheck fleet figures --svg gemini.svg` - Gemini's figures on placement and recovery, computed
""",
)


FleetFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.toml", help="Fleet file (TOML): nodes, chains, copies.", show_default=False
    ),
]


@app.command("check", epilog=MORE)
def fleet_check(
    file: FleetFile,
    show: Annotated[
        bool, typer.Option("--show", help="Print the job file that each chain is started with.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a fleet file and the job files that it names, and show what runs where; starts nothing.

    Exit code 0: it fits; 2: it is refused, with the reason.

    Example: `flowcheck fleet check fleet.toml --show`
    """
    from flowcheck.ops.fleet import fleet_check_command as verb

    raise typer.Exit(verb.run(file, show=show, as_json=as_json))


Place = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Fleet file (TOML), or fleet-state.json in a machine's folder of the fleet.",
        show_default=False,
    ),
]


@app.command("up", epilog=MORE)
def fleet_up(
    file: FleetFile,
    address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Ray's head; auto: the cluster of this machine."),
    ] = "auto",
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for the chains.", min=1)
    ] = 120.0,
    open_ray: Annotated[
        bool,
        typer.Option(
            "--open-ray", help="Go on where Ray asks nobody for a token: a firewall closes it off."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start the chains of a fleet, each on its machine, and their copies; adopt those that run.

    Needs a Ray cluster whose machines have resources: on the first `ray start --head
    --node-ip-address 10.0.0.5 --resources='{"flowcheck_node_ckpt0": 1}'`, on each other one `ray
    start --address 10.0.0.5:6379 --resources='{"flowcheck_node_ckpt1": 1}'`. Ray starts again what
    ends; chains go on without it.

    Exit code 0: all chains run; 1: some do not, with the reason; 2: refused.

    Example: `flowcheck fleet up fleet.toml`
    """
    from flowcheck.ops.fleet import fleet_up_command as verb

    raise typer.Exit(
        verb.run(file, address=address, limit_s=wait, open_ray=open_ray, as_json=as_json)
    )


@app.command("status", epilog=MORE)
def fleet_status(file: Place, as_json: Json = False) -> None:
    """Show all machines of a fleet: what runs, its health, and the newest step exact in each shard.

    Exit code 0: all machines answer and all chains run; 1: not so; 2: the file is refused.

    Example: `flowcheck fleet status fleet.toml`
    """
    from flowcheck.ops.fleet import fleet_status_command as verb

    raise typer.Exit(verb.status(file, as_json=as_json))


@app.command("down", epilog=MORE)
def fleet_down(
    file: Place,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for their ends.", min=1)
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Stop the chains of a fleet on all machines; each writes its checkpoint as its job file says.

    A machine that does not answer stops its chains when it reaches another machine again.

    Exit code 0: all have ended; 1: some have not yet, or a machine did not answer; 2: refused.

    Example: `flowcheck fleet down fleet.toml`
    """
    from flowcheck.ops.fleet import fleet_status_command as verb

    raise typer.Exit(verb.down(file, limit_s=wait, as_json=as_json))


@app.command("restore", epilog=MORE)
def fleet_restore(
    file: Place,
    out: Annotated[
        Path, typer.Option(help="File or folder to write; with several shards a folder of them.")
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format to write, one of those of `flowcheck restore --help`.",
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(help="Checkpoint of the trainer, whose layout is written; for one shard."),
    ] = None,
    step: Annotated[
        str,
        typer.Option(
            help="Step to write; default: the newest that is exact in each shard.",
            metavar="N|latest",
        ),
    ] = "latest",
    shard: Annotated[
        str | None, typer.Option(metavar="CHAIN", help="Only the shard that this chain captures.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing output.")] = False,
    despite_lives: Annotated[
        bool,
        typer.Option(
            "--despite-lives",
            help="Join shards whose chains count the job's restarts differently.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the newest step that is exact in each shard of a fleet, from any machine that has it.

    All shards come of one life of the training job, all of them or none.

    Exit code 0: written; 2: not, with the reason.

    Example: `flowcheck fleet restore fleet.toml --format torch --out restored.pt`
    """
    from flowcheck.cli.checkpoint_cli import step_stated
    from flowcheck.ops.fleet import fleet_restore_command as verb
    from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource

    request = RestoreRequest(
        source=StepSource(),
        output=out,
        templates=() if template is None else (template,),
        form=form,
        force=force,
    )
    code = verb.run(
        file, request, step_stated(step), shard, despite_lives=despite_lives, as_json=as_json
    )
    raise typer.Exit(code)


@app.command("drill", epilog=MORE)
def fleet_drill(
    file: Place,
    shard: Annotated[
        str | None, typer.Option(metavar="CHAIN", help="Only the shard that this chain captures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Try a restore on the running fleet: fetch the newest step from everybody, compare, remove it.

    Shows how long each way takes, and with what probability all shards survive lost nodes. Chains
    go on; each writes the step to files of its own while it is fetched.

    Exit code 0: all gave what they told of; 1: some did not; 2: there is no common step.

    Example: `flowcheck fleet drill fleet.toml`
    """
    from flowcheck.ops.fleet import fleet_drill_command as verb

    raise typer.Exit(verb.run(file, shard, as_json=as_json))


@app.command("node", epilog=MORE)
def fleet_node(
    state: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="This machine's folder of the fleet: STATE/NAME/NODE."),
    ],
    as_json: Json = False,
) -> None:
    """Answer for this machine's chains until they are stopped; `flowcheck fleet up` starts it.

    Exit code 0: it was stopped, or the fleet was; 2: refused.

    Example: `flowcheck fleet node --state /var/lib/flowcheck/fleet/llama/ckpt0`
    """
    from flowcheck.ops.fleet import keeper_command as verb

    raise typer.Exit(verb.run(state, as_json=as_json))


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
