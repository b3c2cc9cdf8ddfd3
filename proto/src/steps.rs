//! A step record between `core` and the wire: the one place that knows both.

use memtape_core::tape::StepRecord;

use crate::v1;

/// The message of a step record of a device.
pub fn step_message(device: u8, record: StepRecord) -> v1::StepRecord {
    let StepRecord {
        first_step,
        last_step,
        end_wall_ns,
        floor_allocated,
        peak_allocated,
        end_allocated,
        floor_reserved,
        peak_reserved,
        end_reserved,
        blocks,
        allocs,
        frees,
        ooms,
        malloc_failures,
    } = record;
    v1::StepRecord {
        device: u32::from(device),
        first_step,
        last_step,
        end_wall_ns,
        floor_allocated,
        peak_allocated,
        end_allocated,
        floor_reserved,
        peak_reserved,
        end_reserved,
        blocks,
        allocs,
        frees,
        ooms,
        malloc_failures,
    }
}

/// The device and the record of a message, as they were sent.
pub fn step_record(message: v1::StepRecord) -> (u32, StepRecord) {
    let v1::StepRecord {
        device,
        first_step,
        last_step,
        end_wall_ns,
        floor_allocated,
        peak_allocated,
        end_allocated,
        floor_reserved,
        peak_reserved,
        end_reserved,
        blocks,
        allocs,
        frees,
        ooms,
        malloc_failures,
    } = message;
    let record = StepRecord {
        first_step,
        last_step,
        end_wall_ns,
        floor_allocated,
        peak_allocated,
        end_allocated,
        floor_reserved,
        peak_reserved,
        end_reserved,
        blocks,
        allocs,
        frees,
        ooms,
        malloc_failures,
    };
    (device, record)
}
