//! Moves what one spool keeps into others, when a cluster divides its jobs again.

use std::collections::BTreeMap;

use memtape_core::limits::STEPS_PER_REPORT_MAX;
use memtape_core::placement::shard_of;

use super::{Next, Spool};
use crate::link::wire::{Outgoing, RankUp};

impl Spool {
    /// Moves all entries to the spools of the shards of their jobs, of this many shards. A process
    /// that is killed meanwhile leaves some entries in both, and the coordinator takes each once.
    pub(crate) fn divide(mut self, shards: u16, spools: &mut BTreeMap<u16, Spool>) {
        let ups: BTreeMap<String, RankUp> =
            self.ups().map(|up| (up.tape_id.clone(), up.clone())).collect();
        self.start_stream();
        while let Some(next) = self.next(STEPS_PER_REPORT_MAX) {
            let number = match next {
                Next::Steps(number, ranks) => {
                    for rank in ranks {
                        let Some(up) = ups.get(&rank.tape_id) else { continue };
                        let Some(to) = spools.get_mut(&shard_of(&up.job, shards)) else { continue };
                        to.add_up(up);
                        to.add_steps(&[rank]);
                    }
                    number
                }
                Next::Down(number, down) => {
                    if let Some(up) = ups.get(&down.tape_id)
                        && let Some(to) = spools.get_mut(&shard_of(&up.job, shards))
                    {
                        to.add_up(up);
                        to.add_down(&up.tape_id, Outgoing::RankDown(down));
                    }
                    number
                }
            };
            self.sent_with(number, 0);
        }
        let captures: Vec<u64> = self.captures.keys().copied().collect();
        for number in captures {
            let snapshot = self.capture_snapshot(number);
            let Some(kept) = self.captures.get(&number) else { continue };
            if let Some(to) = spools.get_mut(&shard_of(&kept.up.job, shards)) {
                let bytes = snapshot.as_ref().map(|snapshot| &snapshot.bytes[..]);
                to.add_capture(kept.up.clone(), kept.capture.clone(), bytes);
            }
            self.forget_capture(number);
        }
        self.acked(0);
        self.pass_time(u64::MAX);
    }
}
