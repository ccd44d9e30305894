"""Fine-tune a BERT in the Trainer of Hugging Face while it becomes sparse.

Run it with `python examples/bert_in_the_trainer.py`. It takes half a minute on one core.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import secateurs as sc
from secateurs.adapters import PruningCallback


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sixteen words each; the label says whether word 1 comes before word 2."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(3, 40, (count, 16), generator=draw)
    places = torch.rand(count, 16, generator=draw).argsort(1)[:, :2]
    words.scatter_(1, places, torch.tensor([[1, 2]]).expand(count, 2))
    labels = (places[:, 0] < places[:, 1]).long()
    pairs = zip(words, labels, strict=True)
    return [{"input_ids": each, "labels": label} for each, label in pairs]


def accuracy(model: BertForSequenceClassification, data: list[dict[str, torch.Tensor]]) -> float:
    """The share of sentences that are told right."""
    words = torch.stack([each["input_ids"] for each in data])
    labels = torch.stack([each["labels"] for each in data])
    with torch.no_grad():
        return float((model.eval()(words).logits.argmax(1) == labels).float().mean())


def main(steps: int = 400, sparsity: float = 0.8) -> PruningCallback:
    """Fine-tune; return the callback, which has the masks."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=40, num_attention_heads=4, max_position_embeddings=16, **sizes)
    model = BertForSequenceClassification(config)  # or .from_pretrained(...)
    data, test = sentences(4096, seed=0), sentences(512, seed=1)

    # Cut in ten steps between a fifth and two thirds of the run; the zeros are held after each.
    recipe = sc.Recipe(score="magnitude", sparsity=sparsity, where=["bert.encoder.*"])
    callback = PruningCallback(recipe, start=0.2, end=0.67, cuts=10)
    settings = {"per_device_train_batch_size": 32, "learning_rate": 1e-3, "max_steps": steps}
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    args = TrainingArguments("bert", logging_steps=max(1, steps // 4), **settings, **quiet)
    Trainer(model=model, args=args, train_dataset=data, callbacks=[callback]).train()

    print(f"accuracy on new sentences: {accuracy(model, test):.1%}")
    print(
        f"{sc.sparsity_report(model, masks=callback.masks).total.sparsity:.1%} zeros in the encoder"
    )
    sc.save_sparse(model, "bert.safetensors")
    return callback


if __name__ == "__main__":
    main()
