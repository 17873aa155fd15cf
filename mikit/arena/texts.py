"""What an agent is told beside the task itself."""

from mikit.tasks.instance import Task

FORMAT = """\
# How to answer

Each step is one JSON object with one of two fields:

{{"python_code": "print(model)"}} runs Python, beside `model`, `torch`, `np`, `nn` and `F`. Names are kept between steps, the value of
the last line is shown, output beyond {kilobytes} KB is left out, and code that takes longer than {wall:g} seconds is interrupted. There
are no files to write, no network, no threads and no other processes.

{{"solution_target": [{low}, {high}]}} submits the answer, a list of whole numbers. {submissions}

You have {steps} steps."""
ONE = "There is one submission, and it ends the episode."
SEVERAL = "There are {count}; only the last counts and ends the episode, and none is commented on before."


def opening(task: Task, difficulty: str, domain: range, steps: int, submissions: int, wall: float, output: int) -> str:
    """The first observation of an episode."""
    told = FORMAT.format(
        kilobytes=output >> 10,
        wall=wall,
        low=domain[0],
        high=domain[1],
        steps=steps,
        submissions=ONE if submissions == 1 else SEVERAL.format(count=submissions),
    )
    return f"{task.text(difficulty).rstrip()}\n\n{told}\n"
