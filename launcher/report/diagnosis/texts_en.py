"""The words of verdicts in English. Data: ``field`` or ``field.what``, with the verdict's values in braces."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, Mapping[str, str]] = {
    "NOTHING_TRAINED": {
        "title": "Parameters that should learn do not",
        "evidence.no_gradient": "{count} of {total} trainable tensors have no gradient: {names}",
        "evidence.unmoved": "{count} of {total} trainable tensors have a gradient and stay where they are: {names}",
        "threshold": "any trainable tensor without a gradient in the third step, or unmoved by it; or a gradient norm of 0 "
        "in the first three steps",
        "reason": "from the second step on every tensor of an adapter or an unfrozen block gets a gradient, and AdamW moves "
        "each by about the learning rate; experts to which no token was sent are left out",
        "cure": "for a model of your own code: no detach() or no_grad() on the way to the loss; hand the optimizer the "
        "parameters that the model computes with; lora.targets must name layers that the forward pass uses",
    },
    "FIRST_LOSS_HIGH": {
        "title": "The first loss is worse than a blind guess",
        "evidence": "the first loss is {first}; who guesses blindly among {vocabulary} tokens has ln({vocabulary}) = {blind}",
        "threshold": "more than {limit}, one nat above the blind guess",
        "reason": "a trained model starts far below a blind guess and an untrained one at it; above it the model is sure of "
        "the wrong tokens: the right one gets less than a third of what chance would give it",
        "cure": "compare tokenizer and model: same folder, same vocabulary; look for weights that were not loaded (a lm_head "
        "or embedding made anew); compare data.template with what the model was trained on",
    },
    "TEXT_SHREDDED": {
        "title": "The tokenizer shreds the text",
        "evidence.bytes": "the rows come to {bytes} bytes of UTF-8 a token",
        "evidence.unknown": "{unknown}% of the tokens stand for text that the tokenizer does not know",
        "threshold": "fewer than 1.4 bytes a token, or more than 1% unknown tokens",
        "reason": "a tokenizer that knows nothing of a script falls back to one token a byte, 1.0; one that was trained on it "
        "writes 3 and more (a Chinese character alone is 3 bytes). Below 1.4 most tokens are single bytes: sequences "
        "are several times longer and the model never saw such text in training",
        "cure": "a base model that was trained on this language; look at the rows' encoding (UTF-8 read as another one looks "
        "alike)",
    },
    "RATE_TOO_HIGH": {
        "title": "The steps are too large: the loss swings",
        "evidence.rises": "the loss starts at {start} and rises to {highest} (median of five steps; limit {limit}); "
        "learning rate {rate}",
        "evidence.turns": "the loss was down to {start} and is {highest} now (medians of a quarter of the run; limit {limit}); "
        "learning rate {rate}",
        "evidence.swings": "the loss jumps by {swing}% of itself from step to step and does not fall; learning rate {rate}",
        "threshold": "a median of five losses above the first one by 15%, by four times the noise between steps and by 0.2; or "
        "the last quarter of the run above its lowest quarter by 10%, by four standard errors and by 0.2; or jumps of more "
        "than 25% on a curve that has not fallen by 10%",
        "reason": "batches differ, so single losses rise now and then; a median of five, or that of a quarter, that is "
        "higher by four times what this noise can make is no matter of batches. The noise is measured on this very curve",
        "cure": "train.learning_rate={lower} (usual for the method: {low} to {high}); a larger train.global_batch_size or "
        "train.warmup_ratio also helps",
    },
    "RATE_TOO_LOW": {
        "title": "The steps are too small: the loss does not move",
        "evidence": "over {steps} steps the loss fell by {fall}, from {start}; learning rate {rate}",
        "threshold": "a fall below 1% of the start or within two standard errors ({noise}), over 20 steps or more, with a "
        "learning rate below {low}",
        "reason": "the means of the first and last quarter of the curve cannot be told apart, and the rate is below the range "
        "in which the method usually learns; a flat curve at a usual rate has other reasons and gives no verdict",
        "cure": "train.learning_rate={higher} (usual for the method: {low} to {high})",
    },
    "ROWS_ALIKE": {
        "title": "The rows are nearly all the same",
        "evidence.alike": "half of all pairs of rows have {alike}% or more of their text in common ({rows} rows)",
        "evidence.copies": "only {distinct}% of {rows} rows are different from all others",
        "threshold": "80% of five-character pieces in common (median over pairs of rows), or less than 50% different rows",
        "reason": "pairs of rows of real data sets have 0 to 10% in common, long shared instructions 30 to 60%; from 80% on "
        "the loss measures how well the shared part is known by heart, and says little about the rest",
        "cure": "look at the rows: a join or export may have repeated them; put what all rows share into a short system turn",
    },
    "NOT_SHUFFLED": {
        "title": "Rows come in the order of the file",
        "evidence": "{share}% of {rows} rows come right behind their neighbour in the file",
        "threshold": "50%; a shuffled order has about {shuffled}%",
        "reason": "files are often sorted by source, length or topic; the loss then follows the file and the model forgets "
        "what stood at its beginning",
        "cure": "recipes draw the order from train.seed: this one was changed; for a script of your own, shuffle=True or a "
        "DistributedSampler with set_epoch",
    },
    "VALIDATION_PARTS": {
        "title": "Validation parts from training: the model learns the rows by heart",
        "evidence": "validation was lowest at step {best_step} ({best}) and is {last} at step {last_step}, {rise}% higher, "
        "while training fell from {before} to {after}",
        "threshold": "5% above the lowest, the last two measurements or more all 2% above it, with a falling training loss",
        "reason": "validation uses the same rows each time, so its noise is far below 2%; two measurements in a row make "
        "it no accident",
        "cure": "dcu-launch generate RUN --best and merge RUN --best take the best checkpoint (step {best_step}); fewer "
        "epochs, more rows, a lower lora.r or learning rate, or more lora.dropout",
    },
    "CARD_ERROR": {
        "title": "The curve broke off with an error of the card",
        "evidence.named": "in step {step}: {error}; operator: {operator}",
        "evidence.unnamed": "in step {step}: {error}; the traceback names no operator",
        "threshold": "the failed rank's error names HIP, CUDA or a library on top of them",
        "reason": "the card reports errors late: unless HIP_LAUNCH_BLOCKING=1 was set, the operator named may be one after "
        "the guilty one",
        "cure.attention": "model.attention=eager computes attention by plain matrix products; then "
        "dcu-launch check --ops shows which attention works",
        "cure.precision": "train.precision=fp32 (or fp16 for bf16); dcu-launch check --ops shows what works",
        "cure.collective": "--env NCCL_DEBUG=INFO; dcu-launch check --comm measures collectives between the nodes",
        "cure.optimizer": "full precision of the optimizer without fused kernels: train.precision=fp32; "
        "dcu-launch check --ops shows which optimizer works",
        "cure.vocabulary": "an index beyond the embedding: tokenizer and model must be of one folder",
        "cure.matmul": "--env TORCH_BLAS_PREFER_HIPBLASLT=0 takes rocBLAS; then train.precision=fp16 or fp32",
        "cure.conv": "--env MIOPEN_FIND_MODE=1, and a fresh cache of MIOpen",
        "cure.memory": "train.max_tokens_per_card lower, train.gradient_checkpointing=true, shorter data.max_length",
        "cure.blocking": "run again with --env HIP_LAUNCH_BLOCKING=1: the traceback then names the operator; "
        "dcu-launch check --ops tries each of them",
    },
    "SLOW_RANK": {
        "title": "One rank or node holds the others up",
        "evidence": "{who} was the slowest in {share}% of {steps} steps and took {ratio} times as long as the median rank",
        "threshold": "the same one in 80% of the steps, and 1.25 times the median",
        "reason": "ranks get as many tokens each, so that by chance each is the slowest equally often; what is timed is a "
        "rank's own batches and forward passes, not its waiting for others",
        "cure": "look at that node: hy-smi (temperature, clock, other processes), its CPU load and disk; leave it out "
        "(hostfile) or swap hosts to see whether the slowness moves",
    },
    "DATA_WAIT": {
        "title": "Cards wait for data",
        "evidence": "{share}% of a step's time (median of {steps} steps) goes into making its batches",
        "threshold": "20% of a step",
        "reason": "packed rows are tokenized before training, so that batches take a few percent of a step; more means that "
        "CPUs are too few or busy, or that steps are very short",
        "cure": "more CPU cores a rank (OMP_NUM_THREADS, --bind numa), nobody else on the node; a larger "
        "train.max_tokens_per_card makes steps longer",
    },
}  # fmt: skip
