"""The words of verdicts in Chinese. Data: ``field`` or ``field.what``, with the verdict's values in braces."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, Mapping[str, str]] = {
    "NOTHING_TRAINED": {
        "title": "应当学习的参数没有学习",
        "evidence.no_gradient": "{total} 个可训练张量中有 {count} 个没有梯度:{names}",
        "evidence.unmoved": "{total} 个可训练张量中有 {count} 个有梯度但数值不变:{names}",
        "threshold": "第三步时任何一个可训练张量没有梯度,或更新后数值不变;或前三步梯度范数都是 0",
        "reason": "从第二步起,适配器或解冻层的每个张量都会得到梯度,AdamW 每步移动约一个学习率的距离;"
        "没有分到 token 的专家不计在内",
        "cure": "自己写的模型:到损失的路径上不要 detach() 或 no_grad();交给优化器的必须是模型真正使用的参数;"
        "lora.targets 必须是前向会经过的层",
    },
    "FIRST_LOSS_HIGH": {
        "title": "初始损失比盲猜还差",
        "evidence": "初始损失为 {first};在 {vocabulary} 个 token 中盲猜的损失是 ln({vocabulary}) = {blind}",
        "threshold": "高于 {limit},即比盲猜高 1 nat 以上",
        "reason": "训练过的模型起点远低于盲猜,未训练的模型约等于盲猜;高于盲猜说明模型对错误的 token 很有把握:"
        "正确 token 的概率不到盲猜的三分之一",
        "cure": "核对分词器与模型:同一目录、同一词表;检查是否有未加载的权重(重新初始化的 lm_head 或嵌入层);"
        "核对 data.template 与模型训练时的模板",
    },
    "TEXT_SHREDDED": {
        "title": "分词器把文本切碎了",
        "evidence.bytes": "每个 token 平均只有 {bytes} 个 UTF-8 字节",
        "evidence.unknown": "{unknown}% 的 token 是分词器不认识的文本",
        "threshold": "每个 token 少于 1.4 字节,或未知 token 超过 1%",
        "reason": "不认识某种文字的分词器会退化为一个字节一个 token(1.0);在该文字上训练过的分词器为 3 以上"
        "(一个汉字就是 3 字节)。低于 1.4 时大多数 token 是单个字节:序列长出数倍,而且模型训练时没见过这样的文本",
        "cure": "换用在该语言上训练过的基座模型;检查数据文件的编码(UTF-8 被当作别的编码读取时也会这样)",
    },
    "RATE_TOO_HIGH": {
        "title": "步子太大:损失来回摆动",
        "evidence.rises": "损失从 {start} 升到 {highest}(五步中位数,界限 {limit});学习率 {rate}",
        "evidence.turns": "损失曾降到 {start},现在是 {highest}(四分之一运行的中位数,界限 {limit});学习率 {rate}",
        "evidence.swings": "损失每步跳动 {swing}%,而且没有下降;学习率 {rate}",
        "threshold": "五步损失的中位数比第一步高 15%、高出步间噪声的四倍且至少 0.2;"
        "或最后四分之一比最低的四分之一高 10%、超过四倍标准误差且至少 0.2;或每步跳动超过 25% 而曲线没有下降 10%",
        "reason": "各批数据不同,单步损失偶尔升高很正常;五步或四分之一运行的中位数高出噪声所能造成的四倍,就不是批次造成的。"
        "噪声由这条曲线本身测得",
        "cure": "train.learning_rate={lower}(该方法常用范围 {low} 到 {high});加大 train.global_batch_size 或 "
        "train.warmup_ratio 也有帮助",
    },
    "RATE_TOO_LOW": {
        "title": "步子太小:损失不动",
        "evidence": "{steps} 步内损失从 {start} 只下降了 {fall};学习率 {rate}",
        "threshold": "20 步以上,下降不到起点的 1% 或在两倍标准误差({noise})以内,且学习率低于 {low}",
        "reason": "曲线前四分之一与后四分之一的均值无法区分,而学习率低于该方法通常能学习的范围;"
        "学习率正常而曲线平坦另有原因,不在此判断",
        "cure": "train.learning_rate={higher}(该方法常用范围 {low} 到 {high})",
    },
    "ROWS_ALIKE": {
        "title": "数据几乎都一样",
        "evidence.alike": "半数的数据对有 {alike}% 以上的文本相同(共 {rows} 行)",
        "evidence.copies": "{rows} 行中只有 {distinct}% 互不相同",
        "threshold": "五字符片段有 80% 相同(数据对的中位数),或互不相同的行少于 50%",
        "reason": "真实数据集中两行通常有 0 到 10% 相同,带长公共指令的为 30% 到 60%;超过 80% 时,"
        "损失反映的是公共部分背得多熟,对其余部分说明不了什么",
        "cure": "查看数据:合并或导出时可能重复了;各行共有的内容放进简短的 system 里",
    },
    "NOT_SHUFFLED": {
        "title": "数据按文件顺序输入,没有打乱",
        "evidence": "{rows} 行中 {share}% 紧跟在文件中的前一行之后",
        "threshold": "50%;打乱后约为 {shuffled}%",
        "reason": "文件常按来源、长度或主题排序;不打乱时损失随文件起伏,模型会忘掉文件开头的内容",
        "cure": "配方的顺序由 train.seed 决定,这里被改动过;自己的脚本请用 shuffle=True,或 DistributedSampler 加 set_epoch",
    },
    "VALIDATION_PARTS": {
        "title": "验证与训练分离:模型在死记数据",
        "evidence": "验证损失在第 {best_step} 步最低({best}),第 {last_step} 步为 {last},高出 {rise}%;"
        "同时训练损失从 {before} 降到 {after}",
        "threshold": "比最低值高 5%,最后至少两次都比最低值高 2%,而训练损失仍在下降",
        "reason": "每次验证用的是同样的数据,噪声远低于 2%;连续两次就不是偶然",
        "cure": "用 dcu-launch generate RUN --best、merge RUN --best 取最好的检查点(第 {best_step} 步);减少 epochs,增加数据,"
        "降低 lora.r 或学习率,或加大 lora.dropout",
    },
    "CARD_ERROR": {
        "title": "曲线因卡上的错误中断",
        "evidence.named": "第 {step} 步:{error};算子:{operator}",
        "evidence.unnamed": "第 {step} 步:{error};traceback 没有指出算子",
        "threshold": "失败 rank 的错误来自 HIP、CUDA 或其上的库",
        "reason": "卡上的错误报告得晚:没有设置 HIP_LAUNCH_BLOCKING=1 时,指出的算子可能在真正出错的算子之后",
        "cure.attention": "model.attention=eager 用普通矩阵乘计算注意力;再用 dcu-launch check --ops 查看哪种注意力可用",
        "cure.precision": "train.precision=fp32(bf16 出错可改 fp16);dcu-launch check --ops 显示哪些可用",
        "cure.collective": "--env NCCL_DEBUG=INFO;dcu-launch check --comm 测量节点间的集合通信",
        "cure.optimizer": "不用融合算子的优化器:train.precision=fp32;dcu-launch check --ops 显示哪种优化器可用",
        "cure.vocabulary": "下标超出嵌入层:分词器与模型必须来自同一目录",
        "cure.matmul": "--env TORCH_BLAS_PREFER_HIPBLASLT=0 改用 rocBLAS;再试 train.precision=fp16 或 fp32",
        "cure.conv": "--env MIOPEN_FIND_MODE=1,并清空 MIOpen 缓存",
        "cure.memory": "减小 train.max_tokens_per_card,train.gradient_checkpointing=true,缩短 data.max_length",
        "cure.blocking": "加 --env HIP_LAUNCH_BLOCKING=1 再运行,回溯会指出算子;dcu-launch check --ops 逐个尝试算子",
    },
    "SLOW_RANK": {
        "title": "一个 rank 或节点拖慢了其他",
        "evidence": "{who} 在 {steps} 步中有 {share}% 最慢,耗时是中位数的 {ratio} 倍",
        "threshold": "80% 的步中都是同一个,且为中位数的 1.25 倍",
        "reason": "各 rank 的 token 数相近,偶然情况下每个 rank 最慢的次数应差不多;计时的是该 rank 自己准备数据和前向的时间,"
        "不含等待其他 rank",
        "cure": "检查该节点:hy-smi(温度、频率、其他进程)、CPU 负载和磁盘;在 hostfile 中去掉它,或调换主机看慢的位置是否随之移动",
    },
    "DATA_WAIT": {
        "title": "卡在等数据",
        "evidence": "每步时间的 {share}%({steps} 步中位数)用于准备数据",
        "threshold": "每步的 20%",
        "reason": "打包的数据在训练前已分好词,准备数据只占每步的百分之几;更多说明 CPU 太少或太忙,或每步太短",
        "cure": "给每个 rank 更多 CPU 核(OMP_NUM_THREADS、--bind numa),不与他人共用节点;"
        "加大 train.max_tokens_per_card 使每步更长",
    },
}  # fmt: skip
