"""Parameters: what is refused and how, and which of four sources wins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput
from mikit.settings import NAMES, Params, make_params, read_params_file
from mikit.settings_sources import effective, flatten, from_assignments, nest, parse, variables


@pytest.fixture
def params_file(tmp_path):
    def write(text):
        path = tmp_path / "p.yaml"
        path.write_text(text, "utf-8")
        return path

    return write


def refusal(call, *args, **kwargs) -> str:
    with pytest.raises(BadInput) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("text", ["no", "on", "yes", "12:30", "6_650", "010", "0x10", "0b1", "2024-01-01", "1_0.5"])
@pytest.mark.parametrize("name", ["feature", "run", "nulls"])
def test_a_value_that_yaml_reads_as_something_else_is_refused_with_its_line(params_file, name, text):
    message = refusal(read_params_file, params_file(f"layer: 0\n{name}: {text}\n"))
    assert "p.yaml, line 2" in message and repr(text) in message and "quotes" in message


@pytest.mark.parametrize("text", ["'no'", '"12:30"', "'6_650'"])
def test_quotes_make_it_text(params_file, text):
    assert read_params_file(params_file(f"run: {text}")) == {"run": text[1:-1]}


def test_plain_numbers_are_numbers_exponents_included(params_file):
    values = read_params_file(params_file("a: 1\nb: -2\nc: 1.5\nd: 1e-3\ne: true\nf: null\ng: .5"))
    assert values == {"a": 1, "b": -2, "c": 1.5, "d": 0.001, "e": True, "f": None, "g": 0.5}


@pytest.mark.parametrize(
    "text, said",
    [
        ("feature: 1\nfeature: 2", "line 2: 'feature' is given twice"),
        ("protocol:\n  n_select: 4\n  n_select: 5", "line 3: 'n_select' is given twice"),
        ("- feature", "holds a list"),
        ("1: 2", "key 1 is not text"),
        ("feature: [", "p.yaml"),
        ("x: !!python/object/apply:os.system [ls]", "constructor"),
        ("\t:", "p.yaml"),
    ],
)
def test_a_file_that_is_no_mapping_of_names_is_refused(params_file, text, said):
    assert said in refusal(read_params_file, params_file(text))


def test_a_missing_file_or_folder_is_refused(tmp_path):
    assert "No such file" in refusal(read_params_file, tmp_path / "none.yaml")
    assert "directory" in refusal(read_params_file, tmp_path).lower()
    (tmp_path / "latin.yaml").write_bytes(b"run: \xff")
    assert "UTF-8" in refusal(read_params_file, tmp_path / "latin.yaml")


def test_an_empty_file_means_the_defaults(params_file):
    assert effective({}, {}, params_file("# nothing\n")).params == Params()


@pytest.mark.parametrize(
    "values, said",
    [
        ({"feature": True}, "feature = True: should be a valid integer"),
        ({"feature": "3"}, "feature = '3': should be a valid integer"),
        ({"feature": 3.0}, "feature = 3.0: should be a valid integer"),
        ({"feature": -1}, "feature = -1: should be greater than or equal to 0"),
        ({"nulls": 1}, "nulls = 1: should be a valid boolean"),
        ({"run": 7}, "run = 7: should be a valid string"),
        ({"run": "../other"}, "run = '../other': valid: letters"),
        ({"run": "a/b"}, "run = 'a/b'"),
        ({"run": ""}, "run = ''"),
        ({"run": "x\n"}, "run = "),
        ({"source": "web"}, "source = 'web': should be 'corpus'"),
        ({"protocol": 3}, "protocol = 3: should be"),
        ({"protocol": {"doses": [1.0, True]}}, "protocol.doses.1 = True"),
        ({"protocol": {"doses": [1.0, -1.0]}}, "protocol.doses.1 = -1.0"),
        ({"protocol": {"null_kl": float("nan")}}, "protocol.null_kl = nan"),
        ({"featur": 3}, "unknown parameter 'featur': did you mean 'feature'? valid: model, layer"),
        ({"protocol": {"n_selct": 3}}, "'protocol.n_selct': did you mean 'protocol.n_select'? valid: protocol.window"),
        ({"n_select": 3}, "'n_select': did you mean 'protocol.n_select'?"),
        ({"feature": -1, "seed": -1}, "(and 1 more)"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_says_what_would_be_valid(values, said):
    assert said in refusal(make_params, values)


def test_command_line_beats_environment_beats_file_beats_default(params_file):
    path = params_file("layer: 1\nfeature: 1\nseed: 1\nprotocol:\n  n_select: 4\n  n_confirm: 5\n")
    environment = {"MIKIT_FEATURE": "2", "MIKIT_SEED": "2", "MIKIT_CORPUS": "", "PATH": "/bin"}
    chosen = effective({"seed": 3, "protocol.n_select": 6}, environment, path)
    values = {name: (value, origin) for name, value, origin in chosen.rows()}
    assert values["layer"] == ("1", str(path))
    assert values["feature"] == ("2", "environment MIKIT_FEATURE")
    assert values["seed"] == ("3", "command line")
    assert values["protocol.n_select"] == ("6", "command line")
    assert values["protocol.n_confirm"] == ("5", str(path))
    assert values["batch"] == ("32", "default")
    assert [name for name in NAMES if name not in values] == ["protocol"]


def test_a_fault_names_the_source_that_it_came_from(params_file):
    path = params_file("feature: -1\nprotocol:\n  n_select: 0\n")
    assert refusal(effective, {}, {}, path).startswith(f"{path}: feature = -1")
    assert refusal(effective, {"feature": 1}, {}, path).startswith(f"{path}: protocol.n_select = 0")
    assert refusal(effective, {}, {"MIKIT_FEATURE": "-2"}).startswith("environment MIKIT_FEATURE: feature = -2")
    assert refusal(effective, {"feature": -3}, {}).startswith("command line: feature = -3")
    assert refusal(effective, {}, {"MIKIT_FEATURE": "6_650"}).startswith("environment MIKIT_FEATURE: '6_650'")


def test_a_variable_that_names_no_parameter_is_told(caplog):
    assert effective({}, {"MIKIT_FEATUR": "2", "MIKIT_OUTPUTS": "/o"}).params == Params()
    assert [record.getMessage() for record in caplog.records] == [
        "environment variable MIKIT_FEATUR names no parameter and is ignored"
    ]


def test_text_for_a_text_parameter_stays_text():
    assert parse("run", "12", "here") == "12"
    assert parse("explainer", "no", "here") == "no"
    assert parse("corpus", "null", "here") is None
    assert parse("corpus_tokens", "null", "here") is None
    assert parse("protocol.doses", "[1, 2.5]", "here") == [1, 2.5]


def test_assignments_reach_every_parameter_and_refuse_the_rest():
    assert from_assignments(["seed=4", "protocol.n_select=5", "run=a=b"]) == {
        "seed": 4,
        "protocol.n_select": 5,
        "run": "a=b",
    }
    assert "valid: name=value" in refusal(from_assignments, ["seed"])
    assert "given twice" in refusal(from_assignments, ["seed=1", "seed=2"])
    assert "did you mean 'protocol.n_select'" in refusal(from_assignments, ["protocl.n_select=1"])
    assert "such as protocol.n_select=10" in refusal(from_assignments, ["protocol=1"])


def test_secrets_are_masked_wherever_they_stand():
    environment = {"HF_TOKEN": "secret1", "LLM_BASE_URL": "https://user:secret2@host/v1", "LLM_MODEL": "m", "A": "b"}
    shown = variables(environment)
    assert {name for name, _, _ in shown} == {"HF_TOKEN", "LLM_BASE_URL", "LLM_MODEL"}
    assert "secret" not in str(shown) and "host/v1" in str(shown)


@given(
    st.builds(Params, feature=st.integers(0, 10**6), nulls=st.booleans(), corpus_tokens=st.none() | st.integers(1000))
)
def test_what_is_written_out_reads_back_the_same(params):
    plain = params.model_dump(mode="json")
    assert make_params(nest(flatten(plain))) == params
    assert make_params(params.model_dump(mode="json", exclude_defaults=True)) == params
