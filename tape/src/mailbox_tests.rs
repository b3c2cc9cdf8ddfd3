//! Words of the mailbox: valid, damaged, torn and empty ones.

use alloc::vec::Vec;

use proptest::prelude::*;
use strum::VariantArray as _;

use super::*;

fn any_instruction() -> impl Strategy<Value = Instruction> {
    let remedy = proptest::sample::select(Remedy::VARIANTS);
    (1..=u8::MAX, remedy, 0..=STEP_MAX)
        .prop_map(|(number, remedy, step)| Instruction::new(number, remedy, step).unwrap())
}

proptest! {
    #[test]
    fn a_word_is_read_as_written(of in any_instruction()) {
        prop_assert_eq!(Instruction::from_word(of.word()), Some(of));
    }

    #[test]
    fn a_reply_is_read_as_written(
        of in any_instruction(),
        status in proptest::sample::select(ReplyStatus::VARIANTS),
        steps: u64,
    ) {
        let reply = of.reply(status, steps);
        prop_assert_eq!(Reply::from_word(reply.word()), Some(reply));
        prop_assert_eq!((reply.number(), reply.step()), (of.number(), steps.min(STEP_MAX)));
    }

    /// A word with up to three wrong bits is no instruction.
    #[test]
    fn a_damaged_word_is_no_instruction(
        of in any_instruction(),
        bits in proptest::collection::hash_set(0_u32..64, 1..=3),
    ) {
        let damaged = bits.iter().fold(of.word(), |word, bit| word ^ 1 << bit);
        prop_assert_eq!(Instruction::from_word(damaged), None);
        prop_assert_eq!(Reply::from_word(damaged), None);
    }

    /// At most about 1 of 256 random words is accepted, and an accepted word is within its bounds.
    #[test]
    fn any_word_is_within_bounds_or_refused(word: u64) {
        if let Some(of) = Instruction::from_word(word) {
            prop_assert_eq!(of.word(), word);
            prop_assert!(of.number() > 0 && of.step() <= STEP_MAX);
        }
    }

    /// A word with one byte that was not written yet.
    #[test]
    fn a_word_with_an_old_byte_is_no_instruction(
        old in any_instruction(),
        new in any_instruction(),
        byte in 0_u32..8,
    ) {
        let mask = 0xff << (8 * byte);
        let torn = (new.word() & !mask) | (old.word() & mask);
        let is_whole = torn == new.word() || torn == old.word();
        prop_assert_eq!(Instruction::from_word(torn).is_some(), is_whole);
    }

    #[test]
    fn a_number_differs_from_the_last_instruction_and_reply(mailbox: u64, reply: u64) {
        let number = next_number(mailbox, reply);
        prop_assert!(number > 0);
        prop_assert!(![mailbox, reply].map(|word| (word >> 48) as u8).contains(&number));
    }

    #[test]
    fn offers_are_read_as_written(word: u64) {
        let offers = Offers::from_word(word);
        prop_assert_eq!(offers.word(), word & 15);
        prop_assert_eq!(offers.iter().collect::<Offers>(), offers);
        let names: Vec<&str> = offers.iter().map(Offer::as_str).collect();
        prop_assert_eq!(Offers::from_names(&names.join(",")), offers);
    }
}

#[test]
fn empty_words_are_no_instruction_and_no_reply() {
    assert_eq!(Instruction::from_word(0), None);
    assert_eq!(Reply::from_word(0), None);
    assert_eq!(Offers::from_word(0), Offers::default());
    assert_eq!(Instruction::new(0, Remedy::Gc, 1), None);
    assert_eq!(Instruction::new(1, Remedy::Gc, STEP_MAX + 1), None);
}

#[test]
fn an_instruction_is_due_at_exactly_its_step() {
    let of = Instruction::new(7, Remedy::Gc, 20).unwrap();
    assert_eq!([19, 20, 21].map(|steps| of.due(steps)), [Due::NotYet, Due::Now, Due::Late]);
}
