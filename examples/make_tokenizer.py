"""Trains the quickstart's tokenizer: 2,000 byte-level pieces of the example prompts, with a ChatML template.

It stands for a real model's tokenizer and needs no download. `python examples/make_tokenizer.py`, then
`python examples/make_prompts.py`.
"""

import json
from pathlib import Path

from make_prompts import training_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent / "tokenizer"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    "clean_up_tokenization_spaces": False,
    "model_max_length": 32768,
}
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- 'You can call these functions:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\nTo call one, answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    FOLDER.mkdir(exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    (FOLDER / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} pieces")


if __name__ == "__main__":
    main()
