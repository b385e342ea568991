"""Decides which rows of each global batch one process reads, in a run of several processes."""

import dataclasses

from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class HostBatchShard:
    """The contiguous block of rows of each global batch that one process reads.

    Raises:
        InputError: the batch size is not a multiple of the number of processes.
    """

    batch_size: int  # number of rows in the global batch
    process_index: int = 0
    process_count: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_size % self.process_count:
            raise InputError(f'batch_size {self.batch_size} does not divide over {self.process_count} processes')
        if not 0 <= self.process_index < self.process_count:
            raise InputError(f'process_index {self.process_index} of {self.process_count} processes')

    @property
    def rows(self) -> int:
        """Returns the number of rows in this process's block."""
        return self.batch_size // self.process_count

    def global_position(self, row: int) -> int:
        """Converts a row number of this process, which counts the rows that the process reads over all steps, to the
        row's position in the sequence of global batches."""
        step, row_of_block = divmod(row, self.rows)
        return step * self.batch_size + self.process_index * self.rows + row_of_block
