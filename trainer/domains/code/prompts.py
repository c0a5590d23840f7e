"""How the published formats are asked: chat messages, in one place.

The wording follows the benchmarks in substance (HumanEval: complete the function, Chen et al. 2021; LiveCodeBench
``lcb_runner/prompts/code_generation.py``: question, then format with or without starter code), so that any chat model
knows where its program belongs.
"""

from __future__ import annotations

from trainer.types import Message

SYSTEM = "You are an expert Python programmer. Reply with one complete Python program in a ```python block."
HUMANEVAL = "Complete this function. Repeat its head and give its whole body.\n\n```python\n{prompt}\n```"
STARTER = "{question}\n\nSolve it with this starter code:\n\n```python\n{starter}\n```"
CALLED = "{question}\n\nWrite a Python function named `{entry}`."
STDIN = "{question}\n\nRead the input from standard input and print the answer to standard output."
GATE = "Here is a programming problem. Think about its edge cases, then give your program at the end."


def humaneval(prompt: str) -> tuple[Message, ...]:
    return _chat(HUMANEVAL.format(prompt=prompt.strip("\n")))


def problem(question: str, starter: str, entry: str) -> tuple[Message, ...]:
    """A question with its starter code, the name of the function to write, or neither: then it reads its input."""
    if starter.strip():
        return _chat(STARTER.format(question=question.strip(), starter=starter.strip("\n")))
    if entry:
        return _chat(CALLED.format(question=question.strip(), entry=entry))
    return _chat(STDIN.format(question=question.strip()))


def reworded(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same question under one more line."""
    *before, last = messages
    return (*before, Message(role=last.role, content=f"{GATE}\n\n{last.content}"))


def _chat(content: str) -> tuple[Message, ...]:
    return (Message(role="system", content=SYSTEM), Message(role="user", content=content))
