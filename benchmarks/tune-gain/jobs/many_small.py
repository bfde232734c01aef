"""Many small all_reduces that are posted one after the other and then awaited."""

import torch
from torch import distributed as dist

TENSORS, ELEMENTS = 200, 1024


def main() -> None:
    dist.init_process_group("slackline")
    tensors = [torch.ones(ELEMENTS) for _ in range(TENSORS)]
    while True:  # slackline tune ends the job
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        for tensor in tensors:
            tensor.fill_(1)


if __name__ == "__main__":
    main()
