"""Writes the quickstart's prompts: ten small datasets, in the shapes that public prompt sets come in.

Every run writes the same bytes. `python examples/make_prompts.py`, after `examples/make_tokenizer.py`,
whose ids one of the sets is made of. Longer than our modules are, because most of it is text.
"""
# ruff: noqa: E501 - sentences are easier to read whole

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts"

NAMES = ["Ada", "Bram", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena"]
PLACES = ["Lisbon", "Nairobi", "Kyoto", "Quito", "Oslo", "Hanoi", "Tbilisi", "Perth", "Cork", "Fez", "Lima", "Riga"]
LANGUAGES = ["Python", "Rust", "Go", "TypeScript", "C", "Kotlin"]

Rows = list[dict[str, Any]]


def picked(seed: int, count: int, *choices: list[str]) -> list[tuple[str, ...]]:
    """`count` different combinations, sorted, as files that people collect are sorted by topic."""
    every = list(itertools.product(*choices))
    return sorted(random.Random(seed).sample(every, count))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def agent_traces() -> Rows:
    """A1: an agent half way through a task, with the results of its tools: one answer is asked, the next step."""
    tasks = [
        "The nightly backup of {place} failed again. Find out why and propose a fix.",
        "Free at least ten gigabytes on the build machine in {place} without touching the caches of {name}.",
        "Users in {place} report that search returns last week's prices. Find the stale cache.",
        "The certificate of the {place} gateway runs out tomorrow. Renew it and tell {name} what you changed.",
        "{name} cannot log in from {place} since the last release. Reproduce it and find the commit.",
        "Tests are green here and red in {place}. Find what differs and make them agree.",
    ]
    looks = [
        ("ls -la /var/log/{service}", "total 48\n-rw-r----- 1 root adm 18231 Mar  4 02:14 {service}.log\n-rw-r----- 1 root adm     0 Mar  3 02:14 {service}.err"),
        ("tail -n 3 /var/log/{service}.log", "02:13:58 INFO  {service} started\n02:14:07 WARN  retrying in 30 s (attempt 3 of 3)\n02:14:37 ERROR no space left on device"),
        ("systemctl status {service}", "{service}.service - active (running) since Mon; 2 restarts in the last hour"),
        ("git log --oneline -3 -- {service}", "9f31c02 raise the timeout of {service}\n4be77d1 move {service} to the new queue\n1a0c5ee first version"),
    ]  # fmt: skip
    services = ["backup", "indexer", "gateway", "billing", "mailer"]
    rows: Rows = []
    for number, (task, place, name, service) in enumerate(picked(1, 120, tasks, PLACES, NAMES, services)):
        first, second = looks[number % 4], looks[(number + 1) % 4]
        messages: list[dict[str, Any]] = [
            system("You are an operations agent. Use the shell to look before you act, and explain each step."),
            user(task.format(place=place, name=name)),
        ]
        for at, (command, output) in enumerate([first, second][: 1 + number % 2]):
            call = {"name": "shell", "arguments": {"command": command.format(service=service)}}
            messages.append(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": f"call_{at}", "type": "function", "function": call}],
                }
            )
            messages.append({"role": "tool", "tool_call_id": f"call_{at}", "content": output.format(service=service)})
        rows.append({"id": f"trace-{number:03d}", "messages": messages, "tools": [SHELL]})
    return rows


SHELL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Runs a command and returns what it prints.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def repo_issues() -> Rows:
    """A2: issues of invented projects, in SWE-bench's shape."""
    projects = ["parsnip", "quayside", "lanternfish", "tidewheel", "mossgraph", "copperleaf"]
    faults = [
        "`{call}` raises KeyError when the table is empty",
        "`{call}` returns the rows in another order on every run",
        "`{call}` ignores the time zone of its argument",
        "`{call}` keeps the file open after an error",
        "`{call}` is quadratic in the number of columns",
    ]
    calls = ["load_table", "merge", "Session.flush", "to_csv", "resample", "Reader.rows"]
    wishes = [
        "I would expect an empty result instead, as the documentation says.",
        "It worked in the version before; bisecting ends at the change of the default backend.",
        "Please add a regression test: this is the second time that it comes back.",
    ]
    rows: Rows = []
    for number, (project, fault, call, wish) in enumerate(picked(2, 120, projects, faults, calls, wishes)):
        title = fault.format(call=call)
        rows.append(
            {
                "instance_id": f"{project}-{1000 + 7 * number}",
                "repo": f"example/{project}",
                "problem_statement": f"{title}\n\n### Steps\n\n```python\nimport {project}\n\nresult = {project}."
                f"{call}(source, limit={number % 9})\nprint(result)\n```\n\n{wish}\n",
            }
        )
    return rows


def function_calls() -> Rows:
    """B1: ShareGPT's shape with tools as JSON text; the answer at the end is another model's and is left out."""
    tools = {
        "get_weather": ("Current weather of a city", ["What is the weather like in {place}?", "Do I need a coat in {place} today?"]),
        "convert_currency": ("Converts an amount of money", ["How much is {n}0 euro in the money of {place}?", "I have {n}5 dollars left for {place}: what is that there?"]),
        "book_table": ("Books a table in a restaurant", ["Book a table for {n} in {place} tonight, on the name {name}.", "{name} wants dinner in {place} for {n} people at eight."]),
        "find_train": ("Finds train connections", ["When does the next train leave from {place}? {name} has {n} bags.", "Find {name} {n} seats on a train out of {place} tomorrow morning."]),
    }  # fmt: skip
    rows: Rows = []
    for number, (tool, variant, place, name) in enumerate(picked(3, 400, list(tools), ["0", "1"], PLACES, NAMES)):
        description, asks = tools[tool]
        declared = [{"name": tool, "description": description, "parameters": {"type": "object", "properties": {}}}]
        question = asks[int(variant)].format(place=place, name=name, n=2 + number % 7)
        rows.append(
            {
                "conversations": [
                    {"from": "human", "value": question},
                    {"from": "gpt", "value": "One moment, please."},
                ],
                "tools": json.dumps(declared),
            }
        )
    return rows


def code() -> Rows:
    """B2: Alpaca's shape, an instruction and sometimes an input."""
    asks = [
        "Write a {language} function that {job}, and explain its complexity.",
        "Review this {language} idea and rewrite it so that it {job}.",
        "Write tests in {language} for code that {job}.",
    ]
    jobs = [
        "merges two sorted lists",
        "counts the words of a text without caring about case",
        "finds the first repeated line of a log",
        "rounds prices to the nearest five cents",
        "validates an ISBN",
        "walks a tree without recursion",
        "limits calls to ten in a second",
        "parses durations such as 1h30m",
        "prints a calendar month",
        "removes duplicates but keeps the order",
    ]
    rows: Rows = []
    for number, (ask, job, language) in enumerate(picked(4, 180, asks, jobs, LANGUAGES)):
        given = (
            f"for each item:\n    look at all the others\n    # slow for n = {number + 10}0" if "Review" in ask else ""
        )
        rows.append(
            {"task_id": f"code/{number}", "instruction": ask.format(language=language, job=job), "input": given}
        )
    return rows


def math() -> Rows:
    """B3: word problems; without ids, so that each is known by its content."""
    stories = [
        "{name} sells {a} loaves each morning at {b} coins and bakes {c} more for friends. How much is earned in a week?",
        "A ferry to {place} holds {a} cars. {b} ferries leave half full and {c} leave full. How many cars cross?",
        "{name} walks from {place} at {b} km/h, and a cyclist follows {c} hours later at {a} km/h. When do they meet?",
        "A tank in {place} loses {b} litres an hour and gains {c}. It held {a}0 litres: when is it empty or full?",
        "{name} reads {b} pages a day of a book of {a}0 pages and skips {c} days. On which day is it finished?",
    ]
    rows: Rows = []
    for number, (story, name, place) in enumerate(picked(5, 220, stories, NAMES, PLACES)):
        numbers = {"a": 24 + 3 * (number % 11), "b": 2 + number % 5, "c": 1 + number % 7}
        rows.append({"question": story.format(name=name, place=place, **numbers), "level": 1 + number % 3})
    return rows


def instructions() -> Rows:
    """B4: one prompt text a line."""
    forms = [
        "a short letter",
        "a list of exactly five points",
        "a poem without the letter e",
        "a notice of 50 words",
        "a table in Markdown",
    ]
    themes = [
        "moving house",
        "a lost umbrella",
        "the first frost",
        "a shared kitchen",
        "a late delivery",
        "an old bicycle",
        "a school fair",
        "a power cut",
    ]
    readers = ["a neighbour", "a child of ten", "the town council", "a busy manager", "someone who learns the language", "your future self", "a landlord"]  # fmt: skip
    return [
        {"key": 1000 + number, "prompt": f"Write {form} about {theme} for {reader}. Do not mention any prices."}
        for number, (form, theme, reader) in enumerate(picked(6, 260, forms, themes, readers))
    ]


def chat() -> Rows:
    """B5: conversations of one to three questions; the file's answers between them are not used."""
    starts = [
        "I have {n} days in {place}.",
        "My sister {name} moves to {place}.",
        "I want to cook something from {place} for {n}.",
        "Tell me about the markets of {place}; {name} asked.",
    ]
    seconds = [
        "What would you leave out if it rains?",
        "And with half the money?",
        "Which of that would you do first, and why?",
    ]
    thirds = ["Put it all into one plan, please.", "Now say it in three sentences."]
    rows: Rows = []
    for number, (start, second, third, place) in enumerate(picked(7, 150, starts, seconds, thirds, PLACES)):
        turns = [
            start.format(place=place, name=NAMES[number % 12], n=2 + number % 4) + " What do you suggest?",
            second,
            third,
        ]
        conversation: list[dict[str, str]] = []
        for text in turns[: (1, 1, 1, 2, 3)[number % 5]]:
            conversation += [{"from": "human", "value": text}, {"from": "gpt", "value": "(an older model's answer)"}]
        rows.append({"id": f"chat_{number}", "conversations": conversation})
    return rows


def questions() -> Rows:
    """B6: too few short questions for its budget: this set runs out of prompts first."""
    asks = [
        "Why is {thing} {quality}?",
        "Since when has {thing} been {quality}?",
        "Is {thing} always {quality}?",
        "Who first noticed that {thing} is {quality}?",
    ]
    things = ["the sky", "sea water", "old paper", "a cat's tongue", "rye bread", "desert air", "glass", "moonlight"]
    qualities = ["blue", "salty", "rough", "yellow", "clear", "cold", "dry", "heavy"]
    return [
        {"uid": f"q{number:04d}", "prompt": ask.format(thing=thing, quality=quality)}
        for number, (ask, thing, quality) in enumerate(picked(8, 150, asks, things, qualities))
    ]


def reasoning() -> Iterator[str]:
    """B7's texts: puzzles; the set itself holds their token ids."""
    puzzles = [
        "{a}, {b} and {c} each own one pet: a cat, a dog, a heron. {a} is allergic to fur. {b} never owned a dog. Who owns what?",
        "{a} always lies on days that begin with T, {b} lies on all others. Both say that {c} arrived yesterday. Which day is it?",
        "Three lamps in {place} are wired to switches in another room. {a} may enter once. How does {b} find out which is which?",
        "{a} has a jug of five litres and one of three, and a well in {place}. How does {b} get exactly four litres to {c}?",
    ]
    for number, (puzzle, a, place) in enumerate(picked(9, 150, puzzles, NAMES, PLACES)):
        others = [name for name in NAMES if name != a]
        b, c = others[number % 11], others[(number + 4) % 11]
        yield puzzle.format(a=a, b=b, c=c, place=place) + " Think step by step."


def roleplay() -> Rows:
    """B8: a character in the `system` column beside a prompt."""
    people = [
        "a lighthouse keeper",
        "a retired detective",
        "a ship's cook",
        "a strict librarian",
        "a travelling clockmaker",
        "a young dragon",
        "a museum guard",
        "the mayor of a small town",
    ]
    moods = [
        "who speaks in short sentences",
        "who answers each question with a story",
        "who is secretly afraid of birds",
        "who has just lost a bet",
    ]
    lines = ["Good evening. Is there a room free tonight?", "Somebody has been here before us. What did you see?", "Teach me the most important thing about your work.", "I found this key. Do you know it?", "Why does nobody in town talk about the winter of the flood?", "What would you do with one more day?", "Tell me who I can trust here.", "May I ask you for a favour?"]  # fmt: skip
    return [
        {"id": number, "system": f"You are {person} {mood}. Stay in character.", "prompt": line}
        for number, (person, mood, line) in enumerate(picked(10, 250, people, moods, lines))
    ]


def all_rows() -> dict[str, Rows]:
    """The datasets whose rows are text, by name."""
    return {
        "A1_agent_traces": agent_traces(),
        "A2_repo_issues": repo_issues(),
        "B1_function_calls": function_calls(),
        "B2_code": code(),
        "B3_math": math(),
        "B4_instructions": instructions(),
        "B5_chat": chat(),
        "B6_questions": questions(),
        "B8_roleplay": roleplay(),
    }


def training_texts() -> Iterator[str]:
    """What the example tokenizer learns from: the prompts themselves."""
    for rows in all_rows().values():
        for row in rows:
            yield json.dumps(row, ensure_ascii=False)
    yield from reasoning()


def reasoning_ids() -> Rows:
    """B7: prompts as token ids, rendered by the example tokenizer as any other tool would have done it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer" / "tokenizer.json"))
    rows: Rows = []
    for number, text in enumerate(reasoning()):
        rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        rows.append(
            {"id": f"puzzle-{number:03d}", "input_ids": tokenizer.encode(rendered, add_special_tokens=False).ids}
        )
    return rows


def main() -> None:
    PROMPTS.mkdir(exist_ok=True)
    for name, rows in (all_rows() | {"B7_reasoning": reasoning_ids()}).items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        if name == "B3_math":
            # No time in the header, so that every run writes the same bytes.
            (PROMPTS / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
        elif name == "B5_chat":
            (PROMPTS / f"{name}.json").write_text(
                json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
            )
        else:
            (PROMPTS / f"{name}.jsonl").write_bytes(lines)
        print(f"{name}: {len(rows)} prompts")


if __name__ == "__main__":
    main()
