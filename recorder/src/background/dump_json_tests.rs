//! Dumps as PyTorch writes them, and any bytes.

use proptest::prelude::*;

use super::*;

/// Output of torch 2.11, with two groups.
const TWO_GROUPS: &str = r#"{"comm_lib_version":"2.28.9","nccl_comm_state":{},"pg_config":{
"0":{"desc":"default_pg","name":"0","ranks":"[0, 1, 2, 3]"},
"3":{"desc":"mesh_dp","name":"3","ranks":"[0, 2]"}},"pg_status":{
"0":{"last_completed_collective":"811","last_enqueued_collective":"812",
"last_started_collective":"-1"},
"1":{"last_completed_collective":"-1","last_enqueued_collective":"-1",
"last_started_collective":"-1"}},"version":"2.10"}"#;

fn parsed(text: &str) -> Dump {
    parse(text.as_bytes()).expect("a dump")
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
fn a_text_that_is_no_dump_is_refused() {
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
        "{\"pg_config\":{\"\\ud800\":{}},\"pg_status\":{}}",
        "{\"a\":]1,\"pg_config\":{},\"pg_status\":{}}",
    ];
    for text in wrong {
        assert_eq!(parse(text.as_bytes()), None, "{text}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(1 << 20));
    assert_eq!(parse(deep.as_bytes()), None);
}

#[test]
fn names_are_cut_and_stay_on_one_line() {
    let long = "x".repeat(500);
    let text = format!(
        r#"{{"pg_config":{{"{long}":{{"desc":"a\n\"b\u00e4"}}}},"pg_status":{{"0":{{}}}}}}"#
    );
    let config = parsed(&text).groups().remove(0).config.expect("one of one");
    assert_eq!(config.name.len(), 32);
    assert_eq!(config.desc, "a \"bä");
}

#[test]
fn groups_differ_by_name_and_ranks() {
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
        let all: Vec<String> = (0..GROUPS_MAX + 3).map(|n| format!("\"{n}\":{value}")).collect();
        all.join(",")
    };
    let text =
        format!(r#"{{"pg_config":{{{}}},"pg_status":{{{}}}}}"#, entries("{}"), entries("{}"));
    let dump = parsed(&text);
    assert_eq!((dump.lost, dump.statuses.len()), (6, GROUPS_MAX));
    assert!(dump.groups().iter().all(|group| group.config.is_none()));
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes).map(Dump::groups);
    }

    #[test]
    fn any_brackets_and_quotes_end_in_an_answer(
        text in r#"[\{\}\[\]",:\\u0-9a-f \-]{0,200}"#,
    ) {
        let _ = parse(text.as_bytes()).map(Dump::groups);
    }

    /// A dump that is damaged in one place is refused, or parses to a dump.
    #[test]
    fn a_damaged_dump_ends_in_an_answer(at in 0..TWO_GROUPS.len(), byte: u8, is_cut: bool) {
        let mut bytes = TWO_GROUPS.as_bytes().to_vec();
        bytes[at] = byte;
        if is_cut {
            bytes.truncate(at);
        }
        if let Some(dump) = parse(&bytes) {
            prop_assert!(!is_cut && dump.groups().len() <= 2);
        }
    }
}
