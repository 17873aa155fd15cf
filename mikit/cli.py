"""The `mikit` command: what a person types, turned into calls of the library, and failures into one line each."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from mikit import __version__, paths
from mikit.errors import BadInput, MikitError
from mikit.settings import Params
from mikit.settings_sources import Effective, effective, from_assignments, parse, variables

INTERRUPTED = 130
GATE_NOT_PASSED = 3
FEATURE_EXAMPLE = "Example: mikit run --model planted --layer 0 --feature 3 --run first"

app = typer.Typer(
    help="Explain features of sparse autoencoders from both ends, and test the explanations.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _option(name: str, metavar: str) -> Any:
    """An option for a parameter. All are text here: the params file, the environment and the line share one parser."""
    field = Params.model_fields[name]
    default = "" if field.default is None else f" [default: {field.default}]"
    return Option(f"--{name.replace('_', '-')}", metavar=metavar, help=f"{field.description}{default}")


KEY_OPTION = Option(
    "--llm-api-key",
    metavar="KEY",
    help="Key of the language model's server; others can see it in the list of processes.",
)
KEY_FILE_OPTION = Option("--llm-api-key-file", metavar="FILE", help="File that holds the key alone.")


def _use_key(key: str | None, file: str | None) -> None:
    """A key goes from the line into the environment, and nowhere else: no parameter, no file, no log holds it."""
    if key is not None and file is not None:
        raise BadInput("--llm-api-key: also given as --llm-api-key-file: valid: one of the two")
    if key is not None:
        os.environ["LLM_API_KEY"] = key
    if file is not None:
        os.environ.pop("LLM_API_KEY", None)
        os.environ["LLM_API_KEY_FILE"] = str(Path(file).expanduser().absolute())


@app.callback(invoke_without_command=True)
def _mikit(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, Option("--debug", help="Log everything, and show the traceback of a failure.")] = False,
) -> None:
    if version:
        typer.echo(f"mikit {__version__}")
        raise typer.Exit


@app.command(epilog=FEATURE_EXAMPLE)
def run(
    context: typer.Context,
    params: Annotated[
        Path | None, Option("--params", metavar="FILE", help="YAML file, such as params/demo.yaml.")
    ] = None,
    model: Annotated[str | None, _option("model", "NAME|ID|PATH")] = None,
    layer: Annotated[str | None, _option("layer", "L")] = None,
    feature: Annotated[str | None, _option("feature", "F")] = None,
    planted_spec: Annotated[str | None, _option("planted_spec", "FILE")] = None,
    planted_seed: Annotated[str | None, _option("planted_seed", "N")] = None,
    run: Annotated[str | None, _option("run", "NAME")] = None,
    sae: Annotated[str | None, _option("sae", "PATH|RELEASE/ID")] = None,
    sae_root: Annotated[str | None, _option("sae_root", "PATH")] = None,
    sae_width: Annotated[str | None, _option("sae_width", "WIDTH")] = None,
    sae_l0: Annotated[str | None, _option("sae_l0", "N")] = None,
    device: Annotated[str | None, _option("device", "NAME")] = None,
    dtype: Annotated[str | None, _option("dtype", "NAME")] = None,
    source: Annotated[str | None, _option("source", "NAME")] = None,
    corpus: Annotated[str | None, _option("corpus", "NAME|PATH")] = None,
    corpus_tokens: Annotated[str | None, _option("corpus_tokens", "N")] = None,
    document_tokens: Annotated[str | None, _option("document_tokens", "N")] = None,
    explainer: Annotated[str | None, _option("explainer", "NAME")] = None,
    max_hypotheses: Annotated[str | None, _option("max_hypotheses", "N")] = None,
    max_rounds: Annotated[str | None, _option("max_rounds", "N")] = None,
    llm_model: Annotated[str | None, _option("llm_model", "NAME")] = None,
    llm_base_url: Annotated[str | None, _option("llm_base_url", "URL")] = None,
    llm_api_key: Annotated[str | None, KEY_OPTION] = None,
    llm_api_key_file: Annotated[str | None, KEY_FILE_OPTION] = None,
    llm_token_budget: Annotated[str | None, _option("llm_token_budget", "N")] = None,
    llm_money_budget: Annotated[str | None, _option("llm_money_budget", "USD")] = None,
    bos_token_root: Annotated[str | None, _option("bos_token_root", "PATH")] = None,
    bos_prompt_id: Annotated[str | None, _option("bos_prompt_id", "ID")] = None,
    neuronpedia_id: Annotated[str | None, _option("neuronpedia_id", "MODEL/SOURCE")] = None,
    neuronpedia_record: Annotated[str | None, _option("neuronpedia_record", "FILE")] = None,
    seed: Annotated[str | None, _option("seed", "N")] = None,
    batch: Annotated[str | None, _option("batch", "N")] = None,
    nulls: Annotated[bool | None, Option(help=Params.model_fields["nulls"].description)] = None,
    assignments: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any parameter by name: protocol.n_select=10.")
    ] = None,
    show_params: Annotated[
        bool, Option("--show-params", help="Print each effective value with its origin, and stop.")
    ] = False,
    require_gates: Annotated[
        bool, Option("--require-gates", help=f"Exit with {GATE_NOT_PASSED} unless all three gates pass.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Start over: forget the steps that are done.")] = False,
) -> None:
    """Run the nine notebooks on one feature; steps that are done, with the same parameters, are kept.

    A parameter's value comes from the command line, else from the environment (MIKIT_FEATURE=3), else from the file
    given with --params, else it is the default.
    """
    _use_key(llm_api_key, llm_api_key_file)
    given = _given(context.params, assignments or [])
    chosen = effective(given, os.environ, params)
    if show_params:
        _show(chosen)
        return
    from mikit.runs.engine import run_pipeline

    trace = run_pipeline(chosen.params, force=force)
    _summarise(chosen.params)
    if require_gates and not trace.meta.gate_pass.all_pass:
        raise typer.Exit(GATE_NOT_PASSED)


def _given(options: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The parameters on the command line, by dotted name."""
    texts = {name: value for name, value in options.items() if name in Params.model_fields and value is not None}
    by_name = from_assignments(assignments)
    if twice := sorted(set(texts) & set(by_name)):
        raise BadInput(f"--set {twice[0]}: also given as --{twice[0].replace('_', '-')}: valid: one of the two")
    return by_name | {n: parse(n, text, f"--{n}") if isinstance(text, str) else text for n, text in texts.items()}


def _show(chosen: Effective) -> None:
    rows = [*chosen.rows(), *variables(os.environ)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, origin in rows:
        typer.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _summarise(params: Params) -> None:
    from mikit.runs.directory import RunDirectory
    from mikit.runs.report import summary

    directory = RunDirectory(params)
    trace = directory.read_trace()
    assert trace is not None
    for line in summary(params.model, trace.meta):
        typer.echo(line)
    typer.echo(f"trace:  {directory.trace_path}\nreport: {directory.report_path}")


@app.command(epilog="""Example: mikit score --model planted --feature 3 --explanation 'fires on "apple" or "pear"'""")
def score(
    context: typer.Context,
    table: Annotated[
        Path | None,
        Argument(metavar="[CSV]", help="Explanations to score: columns feature, explanation, output, rule."),
    ] = None,
    explanation: Annotated[
        str | None, Option(metavar="TEXT", help='When it fires, tokens in quotes: fires on "a" or "b" after "c".')
    ] = None,
    output: Annotated[
        str | None, Option(metavar="TEXT", help='What it does, tokens in quotes: promotes "a", "b"; or suppresses.')
    ] = None,
    rule: Annotated[
        str | None, Option(metavar="JSON", help='When it fires, as JSON: {"any_of": [{"tokens": [" a"]}]}.')
    ] = None,
    explanation_from: Annotated[
        str | None, Option(metavar="neuronpedia", help="Whose explanations of the feature are scored.")
    ] = None,
    neuronpedia_id: Annotated[str | None, _option("neuronpedia_id", "MODEL/SOURCE")] = None,
    neuronpedia_record: Annotated[str | None, _option("neuronpedia_record", "FILE")] = None,
    llm_model: Annotated[str | None, _option("llm_model", "NAME")] = None,
    llm_base_url: Annotated[str | None, _option("llm_base_url", "URL")] = None,
    params: Annotated[Path | None, Option("--params", metavar="FILE", help="YAML file of parameters.")] = None,
    model: Annotated[str | None, _option("model", "NAME")] = None,
    layer: Annotated[str | None, _option("layer", "L")] = None,
    feature: Annotated[str | None, _option("feature", "F")] = None,
    nulls: Annotated[bool | None, Option(help=Params.model_fields["nulls"].description)] = None,
    assignments: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any other parameter by name.")
    ] = None,
    out: Annotated[Path | None, Option("--out", metavar="FILE", help="Table of results, as CSV.")] = None,
    require_gates: Annotated[
        bool, Option("--require-gates", help=f"Exit with {GATE_NOT_PASSED} unless every gate that was tried passes.")
    ] = False,
) -> None:
    """Put explanations that you bring through the same gates as those that a run writes.

    Offline, a sentence must say in quotes which tokens it means, or name a form: digits, capitalized, punctuation,
    starts with "un", ends with "ing".
    """
    from mikit.runs import score as scoring

    brought = any((explanation, output, rule))
    if [table is not None, brought, explanation_from is not None].count(True) != 1:
        raise BadInput(
            "score: valid: a CSV file, or --explanation, --rule or --output, or --explanation-from neuronpedia"
        )
    if explanation_from not in (None, "neuronpedia"):
        raise BadInput(f"--explanation-from {explanation_from}: valid: neuronpedia")
    if table is not None and feature is not None:
        raise BadInput(f"--feature: {table} says which feature each explanation is of: valid: one of the two")
    if explanation is not None and rule is not None and table is None:
        logging.getLogger(__name__).info("--rule is what is tested; --explanation is kept as its wording")
    given = _given(context.params, assignments or [])
    chosen = effective({"run": "score"} | given, os.environ, params).params
    if table:
        rows = scoring.read_rows(table)
    elif explanation_from:
        rows = scoring.rows_from_neuronpedia(chosen)
    else:
        rows = [scoring.Row(chosen.feature, explanation, output, rule, where="given")]
    found = []
    for row, scored in scoring.score_rows(chosen, rows):
        found.append((row, scored))
        for line in scoring.summary(chosen.model, scored):
            typer.echo(line)
    results = [scoring.table_row(row, scored) for row, scored in found]
    if path := out or (scoring.default_table(table) if table else None):
        scoring.write_table(results, path)
        typer.echo(f"table: {path}")
    if table and (expected := scoring.expected_false_passes([scored.nulls for _, scored in found], len(found))):
        typer.echo(expected)
    if require_gates and not all(scoring.passes(scored) for _, scored in found):
        raise typer.Exit(GATE_NOT_PASSED)


@app.command(epilog="Example: mikit refine --layer 0 --feature 3 --run first --max-rounds 5")
def refine(
    context: typer.Context,
    layer: Annotated[str | None, _option("layer", "L")] = None,
    feature: Annotated[str | None, _option("feature", "F")] = None,
    run: Annotated[str | None, _option("run", "NAME")] = None,
    max_rounds: Annotated[int, Option("--max-rounds", metavar="N", help="Rounds of refinement at most.")] = 5,
    llm_api_key: Annotated[str | None, KEY_OPTION] = None,
    llm_api_key_file: Annotated[str | None, KEY_FILE_OPTION] = None,
    assignments: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="How it is carried out, such as llm_token_budget=100000."),
    ] = None,
) -> None:
    """Go on with an existing run: work on what failed first, and put the best explanation to a new test.

    All parameters are the run's own, from its files; a budget or a time-out may be set anew.
    """
    from mikit.runs.engine import refine_pipeline

    _use_key(llm_api_key, llm_api_key_file)
    given = {n: v for n, v in _given(context.params, assignments or []).items() if n != "max_rounds"}
    chosen = effective(given, os.environ, None)
    params, begun = refine_pipeline(chosen.params, max_rounds, set(given))
    if not begun:
        typer.echo("nothing is left that a hypothesis could mend: the trace is as it was")
    _summarise(params)


@app.command(epilog="Example: mikit scan-bos --model planted --layer 0 --bos-token-root outputs/bos")
def scan_bos(
    context: typer.Context,
    params: Annotated[Path | None, Option("--params", metavar="FILE", help="YAML file of parameters.")] = None,
    model: Annotated[str | None, _option("model", "NAME")] = None,
    layer: Annotated[str | None, _option("layer", "L")] = None,
    sae: Annotated[str | None, _option("sae", "PATH|RELEASE/ID")] = None,
    sae_root: Annotated[str | None, _option("sae_root", "PATH")] = None,
    bos_token_root: Annotated[str | None, _option("bos_token_root", "PATH")] = None,
    bos_prompt_id: Annotated[str | None, _option("bos_prompt_id", "ID")] = None,
    assignments: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any other parameter by name.")
    ] = None,
) -> None:
    """Read the whole vocabulary behind BOS, token by token, for `--source bos_token`."""
    from mikit.evidence.bos_tokens import scan_bos as scan_tokens
    from mikit.runs.run import Run

    chosen = effective(_given(context.params, assignments or []), os.environ, params).params
    typer.echo(f"evidence: {scan_tokens(Run(chosen).target, chosen)}")


@app.command(epilog="Example: mikit scan --model smollm2-135m --layer 12 --corpus full")
def scan(
    context: typer.Context,
    params: Annotated[Path | None, Option("--params", metavar="FILE", help="YAML file of parameters.")] = None,
    model: Annotated[str | None, _option("model", "NAME")] = None,
    layer: Annotated[str | None, _option("layer", "L")] = None,
    corpus: Annotated[str | None, _option("corpus", "NAME|PATH")] = None,
    corpus_tokens: Annotated[str | None, _option("corpus_tokens", "N")] = None,
    document_tokens: Annotated[str | None, _option("document_tokens", "N")] = None,
    batch: Annotated[str | None, _option("batch", "N")] = None,
    assignments: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any other parameter by name.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what it will take, by a few batches, and stop.")] = False,
) -> None:
    """Read a corpus once and keep where every latent of the SAE fires: all runs with the same parameters use it.

    Stopped anywhere, the same command goes on where it was.
    """
    chosen = effective(_given(context.params, assignments or []), os.environ, params).params
    from mikit.evidence import estimate_evidence
    from mikit.runs.run import Run

    run = Run(chosen)
    found, folder, is_there = estimate_evidence(run.target, chosen)
    typer.echo(
        f"{found.tokens:,} tokens in {found.windows:,} windows, {found.l0:.1f} active latents a token: "
        f"about {found.seconds:,.0f} s and {found.disk / 2**20:,.0f} MiB"
    )
    if not dry_run:
        store, d_sae = run.store, run.target.sae.d_sae
        live = len(store.live(chosen.protocol.rare_windows))
        typer.echo(
            f"{d_sae:,} latents: {live:,} fire in {chosen.protocol.rare_windows} windows or more, "
            f"{int((store.firing_counts == 0).sum()):,} in none"
        )
    typer.echo(f"evidence: {folder}{' (there already)' if is_there else ' (not made yet)' if dry_run else ''}")


@app.command(epilog="Example: mikit sweep params/sweep-planted.yaml --workers 2")
def sweep(
    context: typer.Context,
    file: Annotated[Path, Argument(metavar="FILE", help="YAML file of parameters with a section `sweep`.")],
    name: Annotated[
        str | None, Option(metavar="NAME", help="Of its folder in outputs/sweeps [default: the run's name].")
    ] = None,
    workers: Annotated[
        int | None,
        Option(metavar="N", help="Features that are computed for at a time [default: the file's, or 1]."),
    ] = None,
    in_flight: Annotated[
        int | None,
        Option(metavar="N", help="Features at a time with those that wait for a language model [default: 4 a worker]."),
    ] = None,
    model_host: Annotated[
        bool | None,
        Option(
            "--model-host/--no-model-host", help="Whether kernels share one model [default: if more are in flight]."
        ),
    ] = None,
    retry_failed: Annotated[bool, Option("--retry-failed", help="Also run again what failed before.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what it will take, by runs that are done, and stop.")
    ] = False,
    scheduler: Annotated[
        str | None, Option(metavar="ADDRESS", help="Dask scheduler whose workers run it: tcp://host:8786, or local.")
    ] = None,
    run: Annotated[str | None, _option("run", "NAME")] = None,
    model: Annotated[str | None, _option("model", "NAME")] = None,
    assignments: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any other parameter by name.")
    ] = None,
) -> None:
    """Run the nine notebooks on many features, in kernels that stay warm, and report on all of them.

    Stopped anywhere, the same command goes on from there. Exits with 1 if a feature failed; the others finish.
    """
    from mikit.runs import sweep as sweeping
    from mikit.runs.sweep_report import write_sweep_report
    from mikit.runs.sweep_spec import NAME, make_spec
    from mikit.settings import read_params_file

    section = read_params_file(file).get(NAME)
    chosen = effective(_given(context.params, assignments or []), os.environ, file, sections=(NAME,)).params
    spec = make_spec(section, chosen, str(file), name=name, workers=workers, in_flight=in_flight, model_host=model_host)
    wanted = sweeping.Sweep(chosen, spec)
    if dry_run:
        for line in sweeping.estimate(wanted).lines():
            typer.echo(line)
        return
    result = sweeping.run_sweep(wanted, retry_failed=retry_failed, scheduler=scheduler)
    for line in sweeping.summary(result):
        typer.echo(line)
    if any(entry.state == "done" for entry in result.entries):
        for line in write_sweep_report(result.folder):
            typer.echo(line)
    sweeping.require_all(result)
    if result.failed:
        raise typer.Exit(1)


@app.command(epilog="Example: mikit fetch all")
def fetch(name: Annotated[str, Argument(metavar="NAME", help="smollm2-135m, corpus, or all.")]) -> None:
    """Get the weights and texts of the embedded default, and make them ready for use, once."""
    from mikit.runs.fetch import fetch

    for line in fetch(name):
        typer.echo(line)


@app.command(epilog="Example: mikit doctor --params params/gemma-2-2b.yaml")
def doctor(
    params: Annotated[
        Path | None, Option("--params", metavar="FILE", help="Also load the target of these parameters and check it.")
    ] = None,
) -> None:
    """Say what is installed, what is missing, what runs left unfinished or damaged, and what to do about each.

    Exits with 1 if something is missing that runs need.
    """
    from mikit.runs.doctor import examine
    from mikit.runs.leftovers import examine_outputs

    findings = [*examine(), *examine_outputs()]
    if params is not None:
        from mikit.runs.target_check import check_target

        findings += check_target(effective({}, os.environ, params).params)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        remedy = f"  -> {finding.remedy}" if finding.remedy else ""
        typer.echo(f"{finding.state:<7} {finding.name:<{width}}  {finding.detail}{remedy}")
    missing = [finding.name for finding in findings if finding.state == "missing"]
    typer.echo(f"missing: {', '.join(missing)}" if missing else "everything that a run needs is there")
    if missing:
        raise typer.Exit(1)


@app.command(epilog="Example: mikit report outputs/layer-12/feature-7/demo")
def report(
    run_dir: Annotated[Path, Argument(metavar="RUN_DIR", help="Folder of a finished run, or of a sweep.")],
) -> None:
    """Make report.html of a run again, from its trace alone, or that of a sweep from its manifest and traces."""
    if (run_dir / "manifest.json").exists():
        from mikit.runs.sweep_report import write_sweep_report

        for line in write_sweep_report(run_dir):
            typer.echo(line)
        return
    from pydantic import ValidationError

    from mikit.trace import Trace

    try:
        trace = Trace.model_validate_json((run_dir / "trace.json").read_bytes())
    except (OSError, ValidationError):
        valid = f"{paths.outputs()}/layer-L/feature-F/RUN"
        raise BadInput(f"{run_dir} holds no valid trace.json: valid: the folder of a finished run, {valid}") from None
    from mikit.runs.report import write_report

    write_report(trace, run_dir / "report.html")
    typer.echo(run_dir / "report.html")


@app.command(epilog="Example: mikit export outputs/layer-0/feature-3/first --out rows.jsonl")
def export(
    run_dirs: Annotated[list[Path], Argument(metavar="RUN_DIR...", help="Folders of finished runs.")],
    out: Annotated[Path, Option("--out", metavar="FILE", help="JSON lines.")],
) -> None:
    """Write explanations, scores and evidence of finished runs as rows in Neuronpedia's form, with their provenance."""
    from mikit.runs.export import write_rows

    typer.echo(f"{write_rows(run_dirs, out)} rows: {out}")


@app.command(epilog="Example: mikit grade submissions/*.json")
def grade(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Submission files that lessons wrote.")],
    csv: Annotated[Path | None, Option("--csv", metavar="FILE", help="Write the table to this file as well.")] = None,
) -> None:
    """Grade what students submitted: a line for each file, from instances made anew."""
    from mikit.tasks.gradebook import grade_files, lines, write_csv

    graded = grade_files(files)
    for line in lines(graded):
        typer.echo(line)
    if csv is not None:
        write_csv(graded, csv)
    if faults := sum(bool(one.fault) for one in graded):
        raise BadInput(f"{faults} of {len(graded)} files could not be graded: valid: files that lessons wrote")


@app.command(epilog="Example: mikit lessons outputs/lessons")
def lessons(
    folder: Annotated[
        Path | None, Argument(metavar="FOLDER", help="Where to write; outputs/lessons if not given.")
    ] = None,
) -> None:
    """Write copies of the lessons for learners, without the solutions."""
    from mikit.tasks.lessons import write_lessons

    for path in write_lessons(folder or paths.outputs() / "lessons"):
        typer.echo(path)


@app.command(epilog="Example: mikit serve --port 8000")
def serve(
    host: Annotated[str, Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", min=1, max=65535, help="Where to listen.")] = 8000,
    split: Annotated[str | None, Option("--split", metavar="NAME", help="train, or test with a secret.")] = None,
    submissions: Annotated[str | None, Option("--submissions", metavar="N", help="Per episode. [default: 1]")] = None,
    sessions: Annotated[
        str | None, Option("--sessions", metavar="N", help="Connections at once. [default: 64]")
    ] = None,
    wall_s: Annotated[str | None, Option("--wall-s", metavar="N", help="Seconds for one step. [default: 30]")] = None,
    isolation: Annotated[
        str | None, Option("--isolation", metavar="LEVEL", help="The strictest to try. [default: full]")
    ] = None,
    allow_unsafe: Annotated[
        bool, Option("--allow-unsafe", help="Serve even where code from outside cannot be confined.")
    ] = False,
) -> None:
    """Serve the four tasks to agents, as an OpenEnv environment; each option is a variable too (MIKIT_ARENA_SPLIT)."""
    from importlib.util import find_spec

    if find_spec("openenv") is None:
        raise BadInput("mikit serve: openenv is not installed: pip install 'mikit[arena]'")
    from mikit.arena.settings import VARIABLES, take_settings

    given = {
        "split": split,
        "submissions": submissions,
        "sessions": sessions,
        "wall_s": wall_s,
        "isolation": isolation,
        "allow_unsafe": "1" if allow_unsafe else None,
    }
    os.environ.update({VARIABLES[name]: value for name, value in given.items() if value is not None})
    settings = take_settings()
    from mikit.arena.server import serve as run_server

    run_server(settings, host, port)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit status; every failure is one line on standard error.

    Args:
        arguments: what follows `mikit`, the process's own if not given.
    """
    from mikit.runs.logs import configure_logging

    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    configure_logging(debug)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        # --debug may stand anywhere; without a word, the help is what is wanted
        status = app([word for word in words if word != "--debug"] or ["--help"], "mikit", standalone_mode=False)
    except MikitError as error:
        return _fail(str(error), error.exit_status, debug)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except OSError as error:
        return _fail(_told(error), 1, debug)
    except Exception as error:
        # a usage error, which typer knows by a class of its own, or a fault of ours
        usage = getattr(error, "format_message", None)
        text = usage() if usage else f"{type(error).__name__}: {error}{'' if debug else ' (--debug shows where)'}"
        return _fail(text, getattr(error, "exit_code", 1), debug)
    finally:
        signal.signal(signal.SIGTERM, before)
    if status == INTERRUPTED:
        return _fail("interrupted; what is done is kept: the same command goes on from there", INTERRUPTED, debug)
    return int(status or 0)


def serve_main() -> None:
    """The command `server`, by which OpenEnv's tools look for a server: `mikit serve`."""
    sys.exit(main(["serve", *sys.argv[1:]]))


def _told(error: OSError) -> str:
    """What the system refused, and what to do: nothing that was finished is lost, since files appear only when whole."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    remedies = {
        errno.ENOSPC: "make room, or name another folder in MIKIT_OUTPUTS or MIKIT_CACHE",
        errno.EDQUOT: "make room within the quota, or name another folder in MIKIT_OUTPUTS or MIKIT_CACHE",
        errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
        errno.EROFS: "name a folder that can be written in MIKIT_OUTPUTS or MIKIT_CACHE",
        errno.EACCES: "make it writable, or name another folder in MIKIT_OUTPUTS or MIKIT_CACHE",
        errno.EMFILE: "raise the limit on open files (ulimit -n)",
    }
    # numpy tells of a write that was cut short, and not why
    short = "make room, or raise the limit on the size of files (ulimit -f)"
    remedy = remedies.get(error.errno, "mend the cause") if error.errno else short
    return f"{what}: {remedy}; what was finished is kept: the same command goes on from there"


def _fail(text: str, status: int, debug: bool) -> int:
    if debug:
        logging.getLogger(__name__).debug("traceback:", exc_info=True)
    typer.echo(f"mikit: {' '.join(text.split())}", err=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
