//! A step record between `core` and the wire: the one place that knows both. The fields come from
//! the one list; a field that only one of both has does not compile.

use memtape_core::tape::StepRecord;

use crate::v1;

macro_rules! translate {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)+) => {
        /// The message of a step record of a device.
        pub fn step_message(device: u8, record: StepRecord) -> v1::StepRecord {
            v1::StepRecord { device: u32::from(device), $($field: record.$field),+ }
        }

        /// The device and the record of a message, as they were sent.
        pub fn step_record(message: v1::StepRecord) -> (u32, StepRecord) {
            (message.device, StepRecord { $($field: message.$field),+ })
        }
    };
}

memtape_core::tape::step_record_fields!(translate);
