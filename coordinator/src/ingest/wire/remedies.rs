//! Answers of agents about the remedies of their ranks.

use memtape_core::action::remedy::Answer;
use memtape_core::identity::ids::Kind;
use memtape_proto::{remedies, v1};

use super::{BadMessage, NUMBER_MAX, id, number, short};
use crate::state::messages::RemedyAnswer;

/// Outcome of a call for one rank.
///
/// # Errors
/// The bound it breaks.
pub(super) fn answer(raw: &v1::RemedyAnswer) -> Result<RemedyAnswer, BadMessage> {
    let call = id(&raw.call_id)?;
    if Kind::of(&call) != Some(Kind::Action) {
        return Err(BadMessage::ActionName(call));
    }
    Ok(RemedyAnswer {
        call,
        tape_id: id(&raw.tape_id)?,
        answer: Answer {
            outcome: remedies::outcome(raw),
            step: number(raw.step)?,
            // It comes from the clock of the rank's process.
            took_ns: raw.took_ns.min(NUMBER_MAX),
            detail: short(&raw.detail),
        },
    })
}

#[cfg(test)]
mod tests {
    use memtape_core::action::remedy::{Ask, Outcome, Signal};
    use memtape_core::tape::mailbox::{Offers, Remedy};

    use super::*;

    #[test]
    fn an_answer_is_accepted_within_its_bounds() {
        let raw = v1::RemedyAnswer {
            call_id: "act-0000001.1".to_string(),
            tape_id: "t".to_string(),
            outcome: v1::RemedyOutcome::Done.into(),
            step: 20,
            took_ns: u64::MAX,
            detail: "a\nb".to_string(),
        };
        let taken = answer(&raw).unwrap();
        assert_eq!((taken.call.as_str(), taken.tape_id.as_str()), ("act-0000001.1", "t"));
        let expected = Answer {
            outcome: Outcome::Done,
            step: 20,
            took_ns: NUMBER_MAX,
            detail: "a b".to_string(),
        };
        assert_eq!(taken.answer, expected);
        let of = |change: fn(&mut v1::RemedyAnswer)| {
            let mut raw = raw.clone();
            change(&mut raw);
            answer(&raw)
        };
        assert!(of(|raw| raw.call_id = "cap-0000001".to_string()).is_err());
        assert!(of(|raw| raw.call_id = "act-".repeat(90)).is_err());
        assert!(of(|raw| raw.tape_id.clear()).is_err());
        assert!(of(|raw| raw.step = u64::MAX).is_err());
        // An outcome of a later version.
        assert_eq!(of(|raw| raw.outcome = 99).unwrap().answer.outcome, Outcome::Refused);
    }

    #[test]
    fn offers_of_a_later_version_are_left_out() {
        let said = vec![v1::Remedy::Gc as i32, 99, v1::Remedy::Withdraw as i32];
        let up = v1::RankUp { offered: said, ..v1::RankUp::default() };
        assert_eq!(remedies::offers(up.offered()), Offers::from_names("gc"));
    }

    #[test]
    fn a_request_encodes_its_remedy() {
        let said = |ask| {
            let raw = remedies::request(ask);
            (raw.remedy(), raw.step, raw.signal())
        };
        let none = v1::RemedySignal::Unspecified;
        let gc = Ask::Remedy { remedy: Remedy::Gc, step: 7 };
        assert_eq!(said(gc), (v1::Remedy::Gc, 7, none));
        let signal = Ask::Signal(Signal::SigUsr1);
        assert_eq!(said(signal), (v1::Remedy::Signal, 0, v1::RemedySignal::Usr1));
        assert_eq!(said(Ask::Withdraw), (v1::Remedy::Withdraw, 0, none));
    }
}
