//! Which status belongs to which group.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

fn status(id: u64) -> Status {
    Status { id, enqueued: Some(id), ..Status::default() }
}

#[test]
fn hashed_group_names_are_paired_where_one_pairing_is_possible() {
    let default = Configured::new("0", "default_pg", "[0, 1]");
    let (one, two) = (Configured::new("d876", "", "[1]"), Configured::new("6bed", "", "[0]"));
    let check = |configs: &[&Configured], ids: &[u64], names: &[&str]| {
        let configured = configs.iter().map(|&config| config.clone()).collect();
        let dump =
            Dump { configured, statuses: ids.iter().copied().map(status).collect(), lost: 0 };
        let found: Vec<String> = dump
            .clone()
            .groups()
            .into_iter()
            .map(|group| group.config.map_or("?".into(), |config| config.name))
            .collect();
        assert_eq!(found, names, "{dump:?}");
    };
    check(&[&default, &one], &[0, 1], &["0", "d876"]);
    check(&[&default, &one], &[1], &["d876"]);
    check(&[&default, &one], &[0], &["0"]);
    check(&[&default, &one, &two], &[0, 1, 2], &["0", "?", "?"]);
    check(&[&default, &one, &two], &[1], &["?"]);
    check(&[&one], &[4], &["d876"]);
    check(&[&one, &two], &[0, 1], &["?", "?"]);
    check(&[&default], &[0, 1], &["?", "?"]);
}

/// Groups of a process: for each group it made, whether it has a communicator and a status.
fn process() -> impl Strategy<Value = Vec<(u64, bool, bool)>> {
    // A step of the name counter (other ranks' groups and gloo's take numbers, too), made, used.
    prop::collection::vec((1u64..4, any::<bool>(), any::<bool>()), 1..12)
}

proptest! {
    /// A group is given its own name or none, for any groups that exist, are made or are used.
    #[test]
    fn a_group_never_has_anothers_name(made in process(), has_desc: bool, is_hashed: bool) {
        let mut name = 0;
        let (mut dump, mut names) = (Dump::default(), Vec::new());
        for (id, (step, is_made, is_used)) in made.iter().enumerate() {
            // A hash of a kind: it says nothing of the order.
            let hash = format!("x{:016x}", (id as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            names.push(if is_hashed && id > 0 { hash } else { name.to_string() });
            let desc = if id == 0 && has_desc { "default_pg" } else { "undefined" };
            if *is_made || *is_used {
                dump.configured.push(Configured::new(&names[id], desc, &format!("[{id}]")));
            }
            if *is_used {
                dump.statuses.push(status(id as u64));
            }
            name += step;
        }
        let all_used = dump.configured.len() == dump.statuses.len();
        for group in dump.clone().groups() {
            let id = group.status.id;
            prop_assert_eq!(group.status.enqueued, Some(id));
            let is_named = group.config.is_some() || is_hashed;
            prop_assert!(!all_used || is_named, "there is one way: {:?}", dump);
            if let Some(config) = group.config {
                prop_assert_eq!(&config.name, &names[id as usize], "{:?}", dump);
            }
        }
    }
}
