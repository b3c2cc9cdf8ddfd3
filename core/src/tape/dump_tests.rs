//! Dumps as PyTorch writes them, and any bytes.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// What torch 2.11 writes, with two groups.
const TWO_GROUPS: &str = r#"{"comm_lib_version":"2.28.9","nccl_comm_state":{},"pg_config":{
"0":{"desc":"default_pg","name":"0","ranks":"[0, 1, 2, 3]"},
"3":{"desc":"mesh_dp","name":"3","ranks":"[0, 2]"}},"pg_status":{
"0":{"last_completed_collective":"811","last_enqueued_collective":"812",
"last_started_collective":"-1"},
"1":{"last_completed_collective":"-1","last_enqueued_collective":"-1",
"last_started_collective":"-1"}},"version":"2.10"}"#;

fn parsed(text: &str) -> Dump {
    Dump::parse(text.as_bytes()).expect("a dump")
}

#[test]
fn a_dump_is_understood() {
    let groups = parsed(TWO_GROUPS).groups();
    let [world, mesh] = groups.as_slice() else { panic!("two groups: {groups:?}") };
    let status = Status { id: 0, enqueued: Some(812), started: None, completed: Some(811) };
    assert_eq!(world.status, status);
    let config = world.config.as_ref().expect("the default group");
    assert_eq!((config.name.as_str(), config.desc.as_str(), config.size), ("0", "default_pg", 4));
    assert_eq!(mesh.status, Status { id: 1, ..Status::default() }, "nothing enqueued is no zero");
    let config = mesh.config.as_ref().expect("the other group");
    assert_eq!((config.name.as_str(), config.desc.as_str(), config.size), ("3", "mesh_dp", 2));
}

#[test]
fn groups_with_hashes_for_names_are_told_where_there_is_one_way() {
    let default = r#""0":{"desc":"default_pg","ranks":"[0, 1]"}"#;
    let (one, two) = (r#""d876":{"ranks":"[1]"}"#, r#""6bed":{"ranks":"[0]"}"#);
    let check = |configs: &[&str], ids: &[u64], names: &[&str]| {
        let statuses: Vec<String> = ids.iter().map(|id| format!(r#""{id}":{{}}"#)).collect();
        let (configs, statuses) = (configs.join(","), statuses.join(","));
        let text = format!(r#"{{"pg_config":{{{configs}}},"pg_status":{{{statuses}}}}}"#);
        let found: Vec<String> = parsed(&text)
            .groups()
            .into_iter()
            .map(|group| group.config.map_or("?".into(), |config| config.name))
            .collect();
        assert_eq!(found, names, "{text}");
    };
    check(&[default, one], &[0, 1], &["0", "d876"]);
    check(&[default, one], &[1], &["d876"]);
    check(&[default, one], &[0], &["0"]);
    check(&[default, one, two], &[0, 1, 2], &["0", "?", "?"]);
    check(&[default, one, two], &[1], &["?"]);
    check(&[one], &[4], &["d876"]);
    check(&[one, two], &[0, 1], &["?", "?"]);
    check(&[default], &[0, 1], &["?", "?"]);
}

#[test]
fn an_empty_recorder_has_no_groups() {
    let dump =
        parsed(r#"{"pg_config":{},"pg_status":{},"version":"2.10","entries":[{"a":[1,{}]}]}"#);
    assert_eq!(dump, Dump::default());
}

#[test]
fn numbers_may_stand_without_quotes_and_fields_may_be_new() {
    let text = r#" { "new" : [1, "]", {"}": null}], "pg_config" : { "a" : { "ranks" : "[]" } } ,
        "pg_status" : { "7" : { "last_enqueued_collective" : 5 , "more" : { } } } } "#;
    let groups = parsed(text).groups();
    assert_eq!(groups[0].status, Status { id: 7, enqueued: Some(5), ..Status::default() });
    assert_eq!(groups[0].config.as_ref().map(|of| of.size), Some(0));
}

#[test]
fn what_is_no_dump_is_refused() {
    let wrong = [
        "",
        "null",
        "[]",
        "{}",
        "{\"pg_config\":{}}",
        "{\"pg_config\":{},\"pg_status\":{}} more",
        "{\"pg_config\":{},\"pg_status\":{\"x\":{}}}",
        "{\"pg_config\":{},\"pg_status\":{\"1\":{\"last_enqueued_collective\":\"1e3\"}}}",
        "{\"pg_config\":[],\"pg_status\":{}}",
        "{\"pg_config\":{},\"pg_status\":{}",
        "{\"a\":]1,\"pg_config\":{},\"pg_status\":{}}",
    ];
    for text in wrong {
        assert_eq!(Dump::parse(text.as_bytes()), None, "{text}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(1 << 20));
    assert_eq!(Dump::parse(deep.as_bytes()), None);
}

#[test]
fn names_are_cut_and_stay_on_one_line() {
    let long = "x".repeat(500);
    let text = format!(
        r#"{{"pg_config":{{"{long}":{{"desc":"a\n\"b\u00e4\ud800"}}}},"pg_status":{{"0":{{}}}}}}"#
    );
    let config = parsed(&text).groups().remove(0).config.expect("one of one");
    assert_eq!(config.name.len(), TEXT_BYTES_MAX);
    assert_eq!(config.desc, "a \"bä\u{fffd}");
}

#[test]
fn a_group_is_told_by_name_and_ranks() {
    let key = |name: &str, ranks: &str| {
        let text = format!(
            r#"{{"pg_config":{{"{name}":{{"ranks":"{ranks}"}}}},"pg_status":{{"0":{{}}}}}}"#
        );
        parsed(&text).configured.remove(0).key
    };
    assert_eq!(key("1", "[0, 1]"), key("1", "[0, 1]"));
    assert_ne!(key("1", "[0, 1]"), key("1", "[2, 3]"), "split groups share their name");
    assert_ne!(key("1", "[0, 1]"), key("2", "[0, 1]"));
}

#[test]
fn groups_beyond_the_bound_are_counted_and_nothing_is_named_then() {
    let entries = |value: &str| {
        let all: Vec<String> =
            (0..PARSED_GROUPS_MAX + 3).map(|n| format!("\"{n}\":{value}")).collect();
        all.join(",")
    };
    let text =
        format!(r#"{{"pg_config":{{{}}},"pg_status":{{{}}}}}"#, entries("{}"), entries("{}"));
    let dump = parsed(&text);
    assert_eq!((dump.lost, dump.statuses.len()), (6, PARSED_GROUPS_MAX));
    assert!(dump.groups().iter().all(|group| group.config.is_none()));
}

/// What a process has: for each group it made, whether it has a communicator and a status.
fn process() -> impl Strategy<Value = Vec<(u64, bool, bool)>> {
    // A step of the name counter (other ranks' groups and gloo's take numbers, too), made, used.
    prop::collection::vec((1u64..4, any::<bool>(), any::<bool>()), 1..12)
}

proptest! {
    /// A group is given its own name or none, whichever groups exist, are made or are used.
    #[test]
    fn a_group_never_has_anothers_name(made in process(), has_desc: bool, is_hashed: bool) {
        let mut name = 0;
        let (mut configs, mut statuses, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (id, (step, is_made, is_used)) in made.iter().enumerate() {
            // A hash of a kind: it says nothing of the order.
            let hash = format!("x{:016x}", (id as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            names.push(if is_hashed && id > 0 { hash } else { name.to_string() });
            let desc = if id == 0 && has_desc { "default_pg" } else { "undefined" };
            if *is_made || *is_used {
                let name = &names[id];
                configs.push(format!(r#""{name}":{{"desc":"{desc}","ranks":"[{id}]"}}"#));
            }
            if *is_used {
                statuses.push(format!(r#""{id}":{{"last_enqueued_collective":"{id}"}}"#));
            }
            name += step;
        }
        let all_used = configs.len() == statuses.len();
        let text = format!(
            r#"{{"pg_config":{{{}}},"pg_status":{{{}}}}}"#, configs.join(","), statuses.join(",")
        );
        for group in parsed(&text).groups() {
            let id = group.status.id;
            prop_assert_eq!(group.status.enqueued, Some(id));
            let is_told = group.config.is_some() || is_hashed;
            prop_assert!(!all_used || is_told, "there is one way: {}", text);
            if let Some(config) = group.config {
                prop_assert_eq!(&config.name, &names[id as usize], "{}", text);
            }
        }
    }

    #[test]
    fn any_bytes_end_in_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Dump::parse(&bytes).map(Dump::groups);
    }

    #[test]
    fn any_brackets_and_quotes_end_in_an_answer(
        text in r#"[\{\}\[\]",:\\u0-9a-f \-]{0,200}"#,
    ) {
        let _ = Dump::parse(text.as_bytes()).map(Dump::groups);
    }

    /// A dump that is damaged in one place is refused, or says something of the same kind.
    #[test]
    fn a_damaged_dump_ends_in_an_answer(at in 0..TWO_GROUPS.len(), byte: u8, is_cut: bool) {
        let mut bytes = TWO_GROUPS.as_bytes().to_vec();
        bytes[at] = byte;
        if is_cut {
            bytes.truncate(at);
        }
        if let Some(dump) = Dump::parse(&bytes) {
            prop_assert!(!is_cut && dump.groups().len() <= 2);
        }
    }
}
