"""Agents without a language model, from blind to right: what their rewards are says what a reward is worth."""

import json
import random
from collections.abc import Callable, Mapping

from mikit.arena.environment import ArenaEnvironment
from mikit.arena.models import ArenaAction
from mikit.tasks import TASKS
from mikit.tasks.catalogue import PUBLIC, generate

UNITS = "v = lambda *p: model.activations(torch.tensor([p], dtype=torch.float32))[0] * model.readout.weight[0]\n"
SHOW = "\nprint(json.dumps(found))"
LOOK: Mapping[str, str] = {
    "task1": """import json
w = model.layer.weight.double()
if hasattr(model, "inner"):
    w = w @ model.inner.weight.double()
m = w.abs().amax(0)
found = [int(i) for i in torch.where(m < 1e-6 * m.max())[0]]"""
    + SHOW,
    "task2": "import json\n"
    + UNITS
    + """s = (v(1, 1, 0) - v(1, -1, 0) - v(-1, 1, 0) + v(-1, -1, 0)) / 4
found = [int(i) for i in torch.where(s.abs() >= 0.01)[0]]"""
    + SHOW,
    "task3": """import json
n = torch.arange(97)
pairs = torch.cartesian_prod(n, n)[::31]
tokens, sums = torch.cat([pairs, torch.full((len(pairs), 1), 97)], 1), pairs.sum(1) % 97
clean, found = model.embed.weight.clone(), []
for f in range(1, 49):
    a = 2 * torch.pi * f * n.double() / 97
    waves = (torch.stack([a.cos(), a.sin()], 1) * (2 / 97) ** 0.5).float()
    model.embed.weight[:97] = clean[:97] - waves @ (waves.T @ clean[:97])
    if (model(tokens).argmax(-1) == sums).float().mean() < 0.5:
        found.append(f)
    model.embed.weight.copy_(clean)"""
    + SHOW,
    "task4": "import json\n"
    + UNITS
    + """s = ((v(0, 0, 1) - v(0, 0, -1)) / 2).abs()
corners = [(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 0, 1)]
m = torch.stack([(v(a, b, c) - v(0, 0, c)).abs() for a, b, c in corners]).amax(0)
found = [int(i) for i in torch.where((s >= 0.02) & (m < 0.1 * s))[0]]"""
    + SHOW,
}
"""Code that finds the answer in the network, by task, and prints it as JSON."""
GLANCE: Mapping[str, str] = {
    "task1": "import json\nfound = model.layer.weight[0].abs().topk(3, largest=False).indices.tolist()" + SHOW,
    "task2": "import json\nfound = (model.hidden.weight.norm(dim=1) * model.readout.weight[0].abs()).topk(3).indices.tolist()"
    + SHOW,
    "task3": "import json\np = torch.fft.rfft(model.embed.weight[:97], dim=0).abs().square().sum(1)[1:49]\n"
    "found = (p.topk(5).indices + 1).tolist()" + SHOW,
    "task4": "import json\nfound = (model.hidden.weight[:, 2].abs() * model.readout.weight[0].abs()).topk(2).indices.tolist()"
    + SHOW,
}
"""One cheap look at the weights, by task: the smallest, the largest, the loudest."""

Policy = Callable[[ArenaEnvironment, str, str, int], float]
"""Plays one episode: of the environment, task, difficulty and seed the sum of rewards."""


def _by_code(code: Mapping[str, str]) -> Policy:
    def play(env: ArenaEnvironment, task: str, difficulty: str, seed: int) -> float:
        env.reset(seed=seed, task_id=task, difficulty=difficulty)
        seen = env.step(ArenaAction(python_code=code[task]))
        answer = json.loads(seen.stdout_or_error.strip().splitlines()[-1])
        return float(env.step(ArenaAction(solution_target=answer)).reward or 0.0)

    return play


def domain(task: str, difficulty: str) -> list[int]:
    """The numbers that an answer may hold; the same for every seed, and told in the text."""
    return list(generate(task, difficulty, 0, PUBLIC).domain)


def at_random(env: ArenaEnvironment, task: str, difficulty: str, seed: int) -> float:
    """Look at nothing, and name three numbers."""
    env.reset(seed=seed, task_id=task, difficulty=difficulty)
    answer = random.Random(seed).sample(domain(task, difficulty), 3)
    return float(env.step(ArenaAction(solution_target=answer)).reward or 0.0)


def hill_climber(env: ArenaEnvironment, task: str, difficulty: str, seed: int) -> float:
    """Look at nothing, and submit at every step the best so far with one number changed."""
    seen = env.reset(seed=seed, task_id=task, difficulty=difficulty)
    numbers, draw = domain(task, difficulty), random.Random(seed)
    best, best_reward, total = set(draw.sample(numbers, 3)), -1.0, 0.0
    for _ in range(int(seen.metadata["steps_left"])):
        tried = best ^ {draw.choice(numbers)} or best
        reward = float(env.step(ArenaAction(solution_target=sorted(tried))).reward or 0.0)
        total += reward
        if reward > best_reward:
            best, best_reward = tried, reward
    return total


POLICIES: Mapping[str, Policy] = {
    "random": at_random,
    "blind hill-climber": hill_climber,
    "cheap": _by_code(GLANCE),
    "reference": _by_code(LOOK),
}
assert LOOK.keys() == GLANCE.keys() == TASKS.keys()
