//! The pickle reader against CPython's pickler: every opcode, any cutting.

use std::collections::BTreeSet;

use crate::pickles::{data, read_plain, show};
use memtape_core::pickle::fault::{Fault, ReadError};
use memtape_core::pickle::opcodes::{self as opcode, Kind};
use memtape_core::pickle::value::Limits;
use proptest::prelude::*;

fn value_of(bytes: &[u8], pieces: &[usize]) -> Result<String, ReadError> {
    let whole = read_plain(bytes, pieces, Limits::default())?;
    Ok(show(&whole.heap, whole.root))
}

/// Pickle and value of each line that CPython wrote.
fn golden() -> Vec<(Vec<u8>, String)> {
    let text = String::from_utf8(data("pickles.tsv")).expect("UTF-8");
    let lines = text.lines().map(|line| {
        let mut fields = line.split('\t');
        let (_, hex) = (fields.next(), fields.next().expect("a pickle"));
        let bytes = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal"))
            .collect();
        (bytes, fields.next().expect("a value").to_string())
    });
    lines.collect()
}

/// Pickles with what CPython's pickler does not write by itself, and what they are.
const BY_HAND: [(&[u8], &str); 21] = [
    (b"\x80\x02(K\x01K\x02l.", "[i1,i2]"),
    (b"\x80\x02(l.", "[]"),
    (b"\x80\x02(K\x01Nd.", "{i1:N}"),
    (b"\x80\x02K\x012\x86.", "(i1,i1)"),
    (b"\x80\x02NK\x070.", "N"),
    (b"\x80\x02N(K\x07K\x081.", "N"),
    (b"\x80\x02N(0.", "N"),
    (b"\x80\x02]p1\n0g1\n.", "[]"),
    (b"\x80\x02K\x05q\x000(h\x00j\x00\x00\x00\x00t.", "(i5,i5)"),
    (b"\x80\x02K\x05r\x02\x00\x00\x000h\x02.", "i5"),
    (b"\x80\x04K\x01q\x000K\x02q\x00\x94h\x01\x86.", "(i2,i2)"),
    (b"\x80\x02U\x02hi.", "s6869"),
    (b"\x80\x02T\x02\x00\x00\x00hi.", "s6869"),
    (b"\x80\x02\x8a\x00.", "i0"),
    (b"\x80\x02\x8b\x01\x00\x00\x00\xff.", "i-1"),
    (b"\x80\x02X\x01\x00\x00\x00\xff.", "sefbfbd"),
    (b"\x80\x04\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi.", "s6869"),
    (b"\x80\x04\x8e\x02\x00\x00\x00\x00\x00\x00\x00hi.", "?"),
    (b"\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00K\x05.", "i5"),
    (b"\x80\x02]q\x00h\x00a0h\x00.", "[[[…"),
    (b"\x80\x02}(K\x01NK\x01Nu.", "{i1:N,i1:N}"),
];

#[test]
fn pickles_of_cpython_are_read() {
    let golden = golden();
    assert!(golden.len() > 400);
    for (bytes, expected) in &golden {
        let found = value_of(bytes, &[]).expect("it is sound");
        if is_kept(expected) {
            assert_eq!(found, expected.replace("()", "[]"), "{bytes:02x?}");
        }
        assert_eq!(value_of(bytes, &[1]), Ok(found), "{bytes:02x?}");
    }
    for (bytes, expected) in BY_HAND {
        let found = value_of(bytes, &[]).expect("it is sound");
        assert!(found.starts_with(expected.trim_end_matches('…')), "{found} {bytes:02x?}");
    }
    // None of the opcodes that are carried out is left untried.
    let mut tried = BTreeSet::new();
    let by_hand = BY_HAND.iter().map(|(bytes, _)| bytes.to_vec());
    for bytes in golden.into_iter().map(|(bytes, _)| bytes).chain(by_hand) {
        tried.extend(names_in(&bytes));
    }
    let all: BTreeSet<_> = opcode::all().filter(|entry| is_data(entry.2)).map(|e| e.1).collect();
    assert_eq!(all.difference(&tried).collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// No snapshot has sets, bytes or integers beyond 64 bits, so that they are not kept.
fn is_kept(shown: &str) -> bool {
    let is_kept = |value: &str| match value.split_at_checked(1) {
        Some(("i", number)) => {
            let number: Option<i128> = number.parse().ok();
            number.is_some_and(|number| (i64::MIN.into()..=u64::MAX.into()).contains(&number))
        }
        Some((kind, _)) => !matches!(kind, "b" | "w" | "<"),
        None => true,
    };
    shown.split(|c| "[](){},:".contains(c)).all(is_kept)
}

fn is_data(kind: Kind) -> bool {
    matches!(kind, Kind::Fixed(_) | Kind::Counted(_) | Kind::Line)
}

/// The opcodes of a sound pickle.
fn names_in(bytes: &[u8]) -> Vec<&'static str> {
    starts_in(bytes)
        .into_iter()
        .map(|at| opcode::look_up(bytes[at]).expect("an opcode").0)
        .collect()
}

/// Where the opcodes of a sound pickle begin.
fn starts_in(bytes: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        starts.push(at);
        let number = |count: usize| {
            let bytes = &bytes[at + 1..at + 1 + count];
            bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
        };
        at += match opcode::look_up(bytes[at]).expect("an opcode").1 {
            Kind::Fixed(count) => 1 + usize::from(count),
            Kind::Counted(count) => 1 + usize::from(count) + number(usize::from(count)),
            Kind::Line => bytes[at..].iter().position(|&b| b == b'\n').expect("a line feed") + 1,
            kind => panic!("{kind:?} in a sound pickle"),
        };
    }
    starts
}

#[test]
fn every_cut_gives_the_same() {
    for (bytes, _) in golden().into_iter().filter(|(bytes, _)| bytes.len() <= 200) {
        let whole = value_of(&bytes, &[]);
        for first in 1..bytes.len() {
            assert_eq!(value_of(&bytes, &[first, bytes.len()]), whole);
        }
    }
}

#[test]
fn no_opcode_that_can_do_harm_is_carried_out() {
    let refused: Vec<_> = opcode::all().filter(|entry| !is_data(entry.2)).collect();
    assert_eq!(refused.len(), 20);
    let golden = golden();
    let mut tried = 0;
    for (index, &(byte, name, kind)) in refused.iter().enumerate() {
        for (bytes, _) in golden.iter().skip(index).step_by(7) {
            let starts = starts_in(bytes);
            let at = starts[1 + (index * 31 + bytes.len()) % (starts.len() - 1)];
            let mut bad = bytes[..at].to_vec();
            bad.extend([byte, 0, 0, 0, 0]);
            bad.extend(&bytes[at..]);
            let error = read_plain(&bad, &[3], Limits::default()).expect_err(name);
            let fault = match kind {
                Kind::Code => Fault::Code(name),
                Kind::OutOfBand => Fault::OutOfBand(name),
                _ => Fault::OldText(name),
            };
            assert_eq!((error.offset, &error.fault), (at as u64, &fault));
            let line = error.to_string();
            assert!(line.starts_with(&format!("byte {at}: opcode {name} ")), "{line}");
            tried += 1;
        }
    }
    assert!(tried > 1000);
}

/// A real one: it would call `os.system`.
#[test]
fn an_attack_is_named_with_its_offset() {
    let attack = b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\
                   \x94\x93\x94\x8c\x02ls\x94\x85\x94R\x94.";
    let error = read_plain(attack, &[], Limits::default()).expect_err("refused");
    let line = "byte 28: opcode STACK_GLOBAL can run code, which no memory snapshot needs: do not \
                load this file with Python unless you trust it";
    assert_eq!(error.to_string(), line);
}

#[test]
fn damage_is_an_error_with_its_offset() {
    let check = |bytes: &[u8], offset: u64, fault: Fault| {
        for pieces in [&[][..], &[1], &[2, 3]] {
            let error = read_plain(bytes, pieces, Limits::default()).expect_err("damaged");
            assert_eq!((error.offset, &error.fault), (offset, &fault), "{bytes:02x?}");
        }
    };
    check(b"", 0, Fault::Truncated);
    check(b"\x80", 0, Fault::Truncated);
    check(b"\x80\x02", 2, Fault::Truncated);
    check(b"\x80\x02X\x05\x00\x00\x00abc", 2, Fault::Truncated);
    check(b"PK\x03\x04", 0, Fault::NoPickle(b'P'));
    check(b"\x1f\x8b\x08", 0, Fault::NoPickle(0x1f));
    check(b"(lp0\n.", 0, Fault::NoPickle(b'('));
    check(b"\x80\x01N.", 0, Fault::Protocol(1));
    check(b"\x80\x06N.", 0, Fault::Protocol(6));
    check(b"\x80\x02\x80\x02N.", 2, Fault::Misplaced("PROTO"));
    check(b"\x80\x02\xff", 2, Fault::NoOpcode(0xff));
    check(b"\x80\x02.", 2, Fault::TooFew("STOP"));
    check(b"\x80\x02NN.", 4, Fault::LeftOver(1));
    check(b"\x80\x02(N.", 4, Fault::LeftOver(1));
    check(b"\x80\x020", 2, Fault::TooFew("POP"));
    check(b"\x80\x02a", 2, Fault::TooFew("APPEND"));
    check(b"\x80\x02](Na", 5, Fault::TooFew("APPEND"));
    check(b"\x80\x02]e", 3, Fault::NoMark("APPENDS"));
    check(b"\x80\x02(e", 3, Fault::TooFew("APPENDS"));
    check(b"\x80\x02](}(NNe", 8, Fault::WrongKind("APPENDS"));
    check(b"\x80\x02N(e", 4, Fault::WrongKind("APPENDS"));
    check(b"\x80\x02](NNu", 6, Fault::WrongKind("SETITEMS"));
    check(b"\x80\x02}(NNNu", 7, Fault::Odd("SETITEMS"));
    check(b"\x80\x02(Nd", 4, Fault::Odd("DICT"));
    check(b"\x80\x02](\x90", 4, Fault::WrongKind("ADDITEMS"));
    check(b"\x80\x02N(\x85", 4, Fault::TooFew("TUPLE1"));
    check(b"\x80\x02h\x00", 2, Fault::NoMemo(0));
    check(b"\x80\x02\x94", 2, Fault::TooFew("MEMOIZE"));
    check(b"\x80\x02Nq\x02h\x01", 5, Fault::NoMemo(1));
    check(b"\x80\x02Nr\x00\x00\x00\x7f.", 3, Fault::MemoNumber(0x7f00_0000));
    check(b"\x80\x02Npx\n.", 3, Fault::Operand("PUT"));
    check(b"\x80\x02g9999999999999999999999999", 2, Fault::Operand("GET"));
    check(b"\x80\x02\x8b\x00\x00\x00\x80", 2, Fault::Operand("LONG4"));
    check(b"\x80\x02T\x00\x00\x00\x80", 2, Fault::Operand("BINSTRING"));
    let frame = b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00\x95\x00\x00\x00\x00\x00\x00\x00\x00";
    check(frame, 11, Fault::Misplaced("FRAME"));
    check(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff", 2, Fault::Operand("FRAME"));
}

#[test]
fn bytes_behind_the_end_are_not_read() {
    let whole = read_plain(b"\x80\x02N.rest", &[3], Limits::default()).expect("Python reads it");
    assert_eq!(whole.bytes, 4);
}

#[test]
fn each_limit_is_named_when_it_is_reached() {
    let limits = Limits {
        depth_max: 3,
        stack_max: 5,
        memo_max: 2,
        objects_max: 4,
        unfolded_max: 2,
        items_max: 4,
        text_bytes_max: 6,
        texts_bytes_max: 8,
        integer_bytes_max: 9,
    };
    let check = |bytes: &[u8], offset: u64, name: &str| {
        let error = read_plain(bytes, &[1], limits).expect_err(name);
        let line = error.to_string();
        assert!(line.ends_with(&format!("beyond the reader's limit {name}")), "{line}");
        assert_eq!(error.offset, offset, "{line}");
    };
    check(b"\x80\x02((((", 5, "depth_max");
    check(b"\x80\x02NNNNNN", 7, "stack_max");
    check(b"\x80\x02Nq\x00q\x01q\x02", 7, "memo_max");
    check(b"\x80\x02]0]0]0]0]", 10, "objects_max");
    check(b"\x80\x02]Na0]Na0]Na", 12, "unfolded_max");
    check(b"\x80\x02](NNe(NNe(Ne", 13, "items_max");
    check(b"\x80\x02\x8c\x07", 2, "text_bytes_max");
    check(b"\x80\x02\x8c\x05abcde0\x8c\x05abcdf", 10, "texts_bytes_max");
    check(b"\x80\x02\x8a\x0a", 2, "integer_bytes_max");
    // With everybody's limits too a few bytes must not be able to ask for gigabytes.
    let huge = b"\x80\x04\x8d\x00\x00\x00\x00\x01\x00\x00\x00";
    let error = read_plain(huge, &[], Limits::default()).expect_err("4 GiB of text");
    assert!(error.to_string().ends_with("text_bytes_max"), "{error}");
}

#[test]
fn sharing_is_kept_and_costs_nothing() {
    // Each tuple holds the one before twice: 2^200 values, if they were followed.
    let mut bytes = b"\x80\x02]".to_vec();
    for _ in 0..200 {
        bytes.extend(b"2\x86");
    }
    bytes.push(b'.');
    read_plain(&bytes, &[], Limits::default()).expect("only 200 tuples");
    // Stored before it was filled, filled twice, and the same for everybody.
    let shared = b"\x80\x02](]q\x01h\x01h\x01(K\x01e0h\x01(K\x02eh\x01e.";
    assert_eq!(value_of(shared, &[]).expect("sound"), "[[i1,i2],[i1,i2],[i1,i2],[i1,i2]]");
}

proptest! {
    #[test]
    fn damaged_pickles_end_in_a_value_or_an_error(
        of in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = of.get(&golden()).0.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let whole = value_of(&bytes, &[]);
        prop_assert_eq!(value_of(&bytes, &[5, 1]), whole);
    }
}
