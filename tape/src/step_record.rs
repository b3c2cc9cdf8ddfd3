//! The record of one device of one rank over one or more steps: read from the tape, sent by the
//! agent, judged by the detector and kept by the coordinator's store.

/// The one list of a record's fields, in their order: calls a macro with it. A new field needs a
/// new version of the tape and of the store: the compiler says where.
#[macro_export]
macro_rules! step_record_fields {
    ($of:ident) => {
        $of! {
            /// First step of the record.
            first_step: u64,
            /// Last step of the record.
            last_step: u64,
            /// End of the last step, Unix time.
            end_wall_ns: i64,
            /// Least bytes handed out.
            floor_allocated: u64,
            /// Most bytes handed out.
            peak_allocated: u64,
            /// Bytes handed out at the end.
            end_allocated: u64,
            /// Least bytes held.
            floor_reserved: u64,
            /// Most bytes held.
            peak_reserved: u64,
            /// Bytes held at the end.
            end_reserved: u64,
            /// Live blocks at the end.
            blocks: u64,
            /// Blocks handed out since the start.
            allocs: u64,
            /// Blocks taken back since the start.
            frees: u64,
            /// Requests that failed for good since the start.
            ooms: u64,
            /// Failed `cudaMalloc` calls since the start.
            malloc_failures: u64,
        }
    };
}

/// Makes the type and its numbers of the list of fields.
macro_rules! define {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)+) => {
        /// One or more finished steps of one device of one rank; steps without events share one
        /// record with the step before them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
        pub struct StepRecord {
            $($(#[$doc])* pub $name: $type,)+
        }

        impl StepRecord {
            /// Fields of a record.
            pub const NUMBERS: usize = [$(stringify!($name)),+].len();

            /// The fields in order, each as a number.
            pub fn to_numbers(self) -> [u64; Self::NUMBERS] {
                [$(self.$name as u64),+]
            }

            /// The record that [`Self::to_numbers`] made these numbers of.
            pub fn from_numbers([$($name),+]: [u64; Self::NUMBERS]) -> Self {
                Self { $($name: $name as $type),+ }
            }
        }
    };
}

step_record_fields!(define);
