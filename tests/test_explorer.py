"""What the feature explorer finds, without Jupyter: features, typed texts, steering, scores, comparisons, files."""

from html.parser import HTMLParser

import builders
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_report import ATTACKS

import mikit
import mikit.paths
from mikit.cli import main
from mikit.errors import BadInput
from mikit.experiments.steering import changes, prompt_sites
from mikit.progress import heard_by, tell, track
from mikit.settings_sources import effective
from mikit.viz import bands_html, plot_histogram, plot_next_tokens, plot_overlap, plot_scored, tokens_html
from mikit.viz.explore import NextTokens, Overlap
from mikit.viz.tokens import bands
from mikit.widgets import open_session
from mikit.widgets.comparing import overlap, windows_beside
from mikit.widgets.features import BANDS, at_random, by_density, by_tokens, label, typed_tokens
from mikit.widgets.reading import LONGEST, read_text, reading_html
from mikit.widgets.saving import params_text, save_figures, save_params
from mikit.widgets.scoring import score_typed, scored_html
from mikit.widgets.steering import next_tokens, steering, write_on

QUICK = {"nulls": False, "protocol": {"n_confirm": 5}}


@pytest.fixture(scope="module")
def session():
    return open_session(model="planted", **QUICK)


@pytest.fixture(scope="module")
def look(session):
    return session.look(3)


class Elements(HTMLParser):
    """The elements of a piece of HTML with the names of their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data):
        self.text += data


# --- finding features ---


def test_the_features_of_a_token_are_ranked_by_how_well_it_names_them(session):
    store, vocabulary = session.run.store, session.run.vocabulary
    token = vocabulary.id_of[" mango"]
    for found in by_tokens(store, vocabulary, ["mango"], 5):
        keys, values = store.actives(found.latent, "explain")
        firing = keys[values >= store.tau(found.latent)]
        hits = int((store.table.ids.ravel()[firing] == token).sum())
        total = int((store.table.ids[store.table.in_split("explain")] == token).sum())
        assert found.why == f"{hits} of its {len(firing)} firings, of {total} such tokens"
    assert by_tokens(store, vocabulary, ["mango"], 5)[0].latent == 3


@pytest.mark.parametrize(
    "typed, texts",
    [
        ("mango plum", ["mango", "plum"]),
        ('"mango" " plum"', ["mango", " plum"]),
        (" mango,  plum ", ["mango", "plum"]),
        ('"a b" c', ["a b", "c"]),
        ('" "', [" "]),
    ],
)
def test_tokens_are_typed_with_or_without_quotes(typed, texts):
    assert typed_tokens(typed) == texts


@pytest.mark.parametrize("typed", ["", "  ,", '""'])
def test_typing_no_token_is_refused(typed):
    with pytest.raises(BadInput, match="nothing is typed"):
        typed_tokens(typed)


def test_a_token_is_known_without_its_space_and_what_is_none_is_refused(session):
    run = session.run
    assert by_tokens(run.store, run.vocabulary, ["mango"]) == by_tokens(run.store, run.vocabulary, [" mango"])
    with pytest.raises(BadInput, match=r'"mangos" is no token of this model: near it: " mango"'):
        by_tokens(run.store, run.vocabulary, ["mangos"])


def test_bands_of_density_hold_each_firing_feature_once(session):
    store = session.run.store
    listed = [found.latent for band in BANDS for found in by_density(store, band, 0, n=10_000)]
    assert sorted(listed) == np.flatnonzero(np.asarray(store.arrays["ref"]) > 0).tolist()
    with pytest.raises(BadInput, match=r"valid: rare"):
        by_density(store, "some", 0)


def test_a_random_feature_can_be_judged(session):
    live = session.run.store.live(40)
    assert {at_random(session.run.store, 40, seed) for seed in range(5)} <= set(live.tolist())
    with pytest.raises(BadInput):
        at_random(session.run.store, 10**9, 0)


# --- looking ---


def test_only_documents_that_are_not_for_tests_are_looked_at(look):
    assert {window.split for window in look.observation.windows} == {"explain"}
    table = look.run.store.table
    assert look.n_tokens == table.lengths[table.in_split("explain")].sum()
    assert 0 < len(look.values) < look.run.store.density(3) * look.run.store.tokens_read


def test_bands_of_windows_are_in_order_of_strength_and_hold_each_once(look):
    shown = bands(look.observation)
    firing = [window.peak for name, windows in shown if "Silent" not in name for window in windows]
    assert firing == sorted(firing, reverse=True)
    assert len(firing) == sum(window.kind in ("top", "quantile") for window in look.observation.windows)


def test_an_index_that_no_latent_has_is_refused(session):
    with pytest.raises(BadInput, match="latents 0 to 135"):
        session.look(136)


def test_a_feature_keeps_what_is_loaded(session, look):
    assert look.run.store is session.run.store
    assert look.run.vocabulary is session.run.vocabulary
    assert look.run.directory.path != session.look(4).run.directory.path


# --- typed texts ---


def test_a_typed_window_has_the_activations_of_the_evidence(look):
    for window in look.observation.windows[:3]:
        reading = read_text(look.run.target, look.feature, look.run.target.text_of(window.ids))
        assert list(reading.tokens) == window.tokens
        assert reading.activations == pytest.approx(np.array(window.activations), abs=1e-4)


@pytest.mark.parametrize("text, said", [("", "Type a text"), (" \n", "Type a text"), ("zzz qqq", "2 unknown")])
def test_a_text_without_tokens_is_answered_with_a_line(look, text, said):
    reading = read_text(look.run.target, look.feature, text)
    assert not reading.tokens
    assert said in reading_html(reading, 1.0, 4.0)


def test_a_long_text_is_read_to_the_longest_that_is(look):
    reading = read_text(look.run.target, look.feature, "the mango " * LONGEST)
    assert (len(reading.tokens), reading.cut) == (LONGEST, LONGEST)
    assert f"The last {LONGEST} tokens are not read" in reading_html(reading, 1.0, 4.0)


def test_a_firing_token_is_told_by_more_than_its_colour():
    page = tokens_html([" a", " b", " c", " d"], [0.0, 0.5, 3.0, -1.0], tau=1.0, full=4.0)
    quiet, grey, fires, left_out = page.split("<bdi")[1:]
    assert 'title="0"' in quiet and "style" not in quiet
    assert "dotted" in grey and "0.5, below tau" in grey
    assert "underline 2px" in fires and "font-weight:700" in fires and "</bdi><span" in fires and ">3</span>" in fires
    assert "dashed" in left_out and "massive" in left_out


@given(st.lists(st.tuples(st.text(max_size=8), st.floats(-1, 9)), max_size=6))
def test_no_token_becomes_an_element(pairs):
    found = Elements(tokens_html([token for token, _ in pairs], [value for _, value in pairs], 1.0, 4.0)).found
    assert {tag for tag, _ in found} <= {"span", "bdi"}
    assert {name for _, names in found for name in names} <= {"style", "title"}


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_windows_are_shown_and_make_no_element(attack):
    seen = builders.observation()
    hostile = [w.model_copy(update={"tokens": [attack] * len(w.tokens), "document": attack}) for w in seen.windows]
    page = Elements(bands_html(seen.model_copy(update={"windows": hostile})))
    assert {tag for tag, _ in page.found} <= {"div", "p", "b", "span", "bdi", "i"}
    assert not [name for _, names in page.found for name in names if name not in ("style", "title")]


# --- steering ---


@pytest.mark.parametrize("position", ["last_token", "all_tokens"])
def test_the_next_token_moves_as_the_experiments_measure_it(look, position):
    target, prompt = look.run.target, "the baker took a"
    steered = steering(target, 3, look.observation.ref, prompt, 2.0, position, seed=0)
    found = next_tokens(steered)
    ids = [target.ids_of(prompt)]
    expected = changes(target, prompt_sites(ids, position), steered.vectors, np.arange(target.vocab_size), 8)
    assert (found.kl, found.random_kl) == pytest.approx(expected.kl[:, 0].tolist(), rel=1e-4)
    at = [target.token_strings([i])[0] for i in np.argsort(-expected.logprob[0, 0])[:1]]
    assert found.moved[0] == at[0]
    assert found.change[0] == pytest.approx(expected.logprob[0, 0].max(), abs=1e-5)


def test_dose_zero_changes_nothing(look):
    steered = steering(look.run.target, 3, look.observation.ref, "the baker took a", 0.0, "last_token", 0)
    found = next_tokens(steered)
    assert found.after == pytest.approx(found.before, abs=1e-6)
    assert found.random == pytest.approx(found.before, abs=1e-6)
    assert (found.kl, found.random_kl) == pytest.approx((0, 0), abs=1e-6)
    assert list(found.moved) == []
    written = write_on(steered, 4)
    assert written.unchanged == written.steered == written.random


def test_the_random_direction_has_the_norm_of_the_feature_and_is_drawn_by_seed(look):
    ref, target = look.observation.ref, look.run.target
    first, again, other = (steering(target, 3, ref, "the baker", 2.0, "last_token", seed).vectors for seed in (0, 0, 1))
    assert first.norm(dim=1)[1] == pytest.approx(float(first.norm(dim=1)[0]), rel=1e-5)
    assert (first == again).all()
    assert (first[1] != other[1]).any()


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"prompt": ""}, "has no token"),
        ({"prompt": "zzz" * 40_000}, "has no token"),
        ({"prompt": "the " * 200}, "valid: 128 at most"),
        ({"prompt": "the \ud800"}, "half a character"),
        ({"ref": 0.0}, "no strength"),
        ({"feature": 999}, "out of range"),
        ({"feature": True}, "is no index"),
        ({"feature": "3"}, "is no index"),
        ({"dose": float("nan")}, "valid: -100 to 100 times ref"),
        ({"dose": 1e30}, "valid: -100 to 100 times ref"),
        ({"position": "zzz"}, "valid: last_token or all_tokens"),
    ],
)
def test_what_can_not_be_steered_is_refused_in_a_line(look, changed, said):
    told = {"feature": 3, "ref": 1.0, "prompt": "the baker", "dose": 1.0, "position": "last_token", "seed": 0}
    with pytest.raises(BadInput, match=said) as error:
        steering(look.run.target, **told | changed)
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


# --- scoring and comparing ---


def test_a_typed_explanation_gets_the_verdict_of_mikit_score(session, look):
    sentences = {"explanation": 'fires on "mango"', "output": 'promotes "file", "axe"'}
    stages = []
    with heard_by(lambda what, done, total: stages.append((done, total))):
        mine = score_typed(look.run, **sentences)
    theirs = mikit.score_explanation(model="planted", feature=3, **sentences, **QUICK)
    assert mine.gates == theirs.gates
    assert mine.input_score == theirs.input_score
    assert [each for each in stages if each[1]][:4] == [(0, 4), (1, 4), (2, 4), (3, 4)], (
        "besides steps of unknown length"
    )
    assert "fail</b> input" in scored_html(mine)
    assert "gate" in plot_scored(mine).axes[0].get_xlabel()


@pytest.mark.parametrize("explanation, said", [("", "nothing to score"), ("fires on fruit", "no token in quotes")])
def test_an_explanation_that_says_nothing_checkable_is_refused(look, explanation, said):
    with pytest.raises(BadInput, match=said):
        score_typed(look.run, explanation, "")


def test_co_activation_is_counted_token_by_token(session):
    store = session.run.store
    dense = int(np.argmax(store.firing_counts))
    one, other = session.look(3), session.look(dense)
    found = overlap(one, other)
    (a, _), (b, _) = store.actives(3, "explain"), store.actives(dense, "explain")
    assert found.shares[0].value == pytest.approx(len(np.intersect1d(a, b)) / len(a))
    assert found.shares[1].value == pytest.approx(len(np.intersect1d(a, b)) / len(b))
    assert found.base == (len(b) / one.n_tokens, len(a) / one.n_tokens)
    assert len(found.values) == len(np.union1d(a, b))
    assert "Feature 3" in windows_beside(one, other)


def test_a_feature_is_not_compared_with_itself(look):
    with pytest.raises(BadInput, match="another feature"):
        overlap(look, look)


# --- pictures ---


def test_pictures_of_nothing_say_so():
    none, nothing = np.zeros(0, np.float32), builders.share(0, 0)
    assert "never active" in plot_histogram(none, 0.0, 0.0, 100).get_suptitle()
    still = NextTokens([], none, none, none, [], none, none, 0.0, 0.0)
    assert "0 nats" in plot_next_tokens(still, "0 x ref").get_suptitle()
    apart = Overlap(("1", "2"), (nothing, nothing), (0.0, 0.0), np.zeros((0, 2), np.float32), 0.0)
    assert "0 of 0" in plot_overlap(apart).get_suptitle()


def test_tokens_that_look_like_formulas_are_drawn_as_they_are(tmp_path):
    values = np.array([0.5, 0.3])
    odd = NextTokens([" $x", "$\\frac"], values, values, values, ["$", "<b>"], values, values, 0.1, 0.1)
    [path] = save_figures({"odd": plot_next_tokens(odd, "1 x ref")}, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_label_of_a_choice_is_one_line(session):
    for found in by_density(session.run.store, "0.1% to 1%", 0):
        assert "\n" not in label(found)


# --- files ---


def test_a_saved_params_file_makes_mikit_run_explain_the_same(look, tmp_path, capsys):
    path = save_params(look.run, tmp_path)
    assert effective({"explainer": "statistical"}, {}, path).params == look.run.params
    assert main(["run", "--params", str(path), "--show-params"]) == 0
    assert str(path) in capsys.readouterr().out.replace("\n", "")


def test_a_params_file_names_what_it_is_about_and_what_differs_from_the_defaults(look):
    values = yaml.safe_load(params_text(look.run))
    assert values == {
        "model": "planted", "layer": 0, "feature": 3, "run": "explorer", "nulls": False, "protocol.n_confirm": 5
    }  # fmt: skip


def test_a_session_opens_from_a_params_file_wherever_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_session("params/planted.yaml").run.feature == 3
    with pytest.raises(BadInput, match=r"no such file: valid: such as params/demo\.yaml"):
        open_session("nothing.yaml")


# --- progress and the front end ---


def test_a_listener_hears_of_progress_while_it_listens():
    heard = []
    with heard_by(lambda what, done, total: heard.append((done, total))):
        assert list(track([1, 2], "work", 2)) == [1, 2]
        tell("more")
    tell("nobody listens")
    assert heard == [(0, 2), (1, 2), (2, 2), (0, 0)]


ASK = """
import sys; sys.path.insert(0, {path!r})
from mikit.progress import tell
from mikit.widgets.frontend import has_front_end
from mikit.widgets.shown import in_the_cell
with in_the_cell():
    tell("half of it", 1, 2)
print(has_front_end())
"""


def outputs_of(client, code: str, metadata: dict) -> list[dict]:
    """What a kernel sends when a cell is run by a message with this metadata."""
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False,
               "stop_on_error": True}  # fmt: skip
    sent = client.session.msg("execute_request", content, metadata=metadata)
    client.shell_channel.send(sent)
    heard = []
    while not (heard and heard[-1]["content"].get("execution_state") == "idle"):
        message = client.get_iopub_msg(timeout=60)
        heard += [message] * (message["parent_header"].get("msg_id") == sent["header"]["msg_id"])
    return heard


def test_a_front_end_is_one_that_says_in_which_cell_it_draws_and_only_there_progress_is_shown():
    """JupyterLab, Notebook 7 and VS Code name the cell in the message; nbclient, below papermill and nbmake, does not."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        code = ASK.format(path=str(mikit.paths.PROJECT))
        alive = outputs_of(client, code, {"cellId": "a1"})
        headless = outputs_of(client, code, {})
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert [m["content"]["text"].strip() for m in alive if m["msg_type"] == "stream"] == ["True"]
    assert [m["content"]["text"].strip() for m in headless if m["msg_type"] == "stream"] == ["False"]
    shown = [m["content"]["data"]["text/html"] for m in alive if "data" in m["content"]]
    assert [("half of it" in html, html == "") for html in shown] == [(False, True), (True, False), (False, True)]
    assert [m for m in headless if "data" in m["content"]] == []


def test_without_a_kernel_there_is_no_front_end():
    from mikit.widgets import has_front_end

    assert not has_front_end()
