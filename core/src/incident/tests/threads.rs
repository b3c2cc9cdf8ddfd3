//! What people do about incidents: bounds, harmless text, and the ends of silences.

use super::notices::notice;
use super::*;
use crate::limits::{
    DEEDS_PER_INCIDENT_MAX, NOTES_PER_INCIDENT_MAX, PERSON_BYTES_MAX, SILENCE_SECONDS_MAX,
    THREAD_NOTE_BYTES_MAX,
};
use crate::visible::is_hidden;

const SILENCE_NS: i64 = (SILENCE_SECONDS_MAX * SECOND) as i64;

/// A diagnosed incident, a page, that is silenced until this step.
fn silenced(until: u64) -> (Shell, Job) {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(1)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    silence(&mut shell, until);
    (shell, job)
}

fn silence(shell: &mut Shell, until: u64) {
    let request = ThreadRequest { silence_until_step: Some(until), ..ThreadRequest::default() };
    let now = shell.now();
    shell.incidents.change_thread(now, "inc-0001", "olga", &request).expect("it is sound");
    shell.carry_out();
}

fn is_silenced(shell: &Shell, id: &str) -> bool {
    shell.incident(id).is_silenced(shell.now().wall_ns)
}

/// What the thread of the first incident lists.
fn deeds(shell: &Shell) -> Vec<Deed> {
    shell.incident("inc-0001").thread.entries.iter().map(|entry| entry.deed).collect()
}

#[test]
fn a_silence_ends_at_its_step_and_after_thirty_days() {
    let (mut shell, job) = silenced(100);
    assert!(is_silenced(&shell, "inc-0001"));
    assert!(!shell.incident("inc-0001").is_silenced(SILENCE_NS));
    for (last_step, expected) in [(99, true), (100, false)] {
        shell.found(&job, Finding::Updated(Growth { last_step, ..leak(1) }));
        assert_eq!(is_silenced(&shell, "inc-0001"), expected, "step {last_step}");
    }
}

#[test]
fn a_silence_of_a_notice_ends_for_good_when_it_pages() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    silence(&mut shell, 1_000);
    assert!(is_silenced(&shell, "inc-0001"));
    shell.found(&job, Finding::Updated(Growth { is_sure: true, ..notice(0) }));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.pages(), is_silenced(&shell, "inc-0001")), (1, false));
    assert_eq!(deeds(&shell), [Deed::Silenced, Deed::SilenceEndedByUrgency]);
    // As urgent as it was, it is not silenced again.
    let (now, unknown) = (shell.now(), Ok(diagnosis(Class::Unknown, 0)));
    shell.incidents.compare("inc-0001", "cap-inc-0001");
    shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", unknown);
    assert_eq!(shell.incident("inc-0001").urgency, Urgency::Notice);
    assert!(!is_silenced(&shell, "inc-0001"));
}

#[test]
fn a_silence_ends_with_another_class_and_not_without_a_diagnosis() {
    for (class, expected) in [(Class::Unknown, true), (Class::ReferenceCycles, false)] {
        let (mut shell, _) = silenced(1_000);
        let now = shell.now();
        shell.incidents.compare("inc-0001", "cap-inc-0001");
        shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", Ok(diagnosis(class, 3)));
        assert_eq!(is_silenced(&shell, "inc-0001"), expected, "{class:?}");
        let ended = (!expected).then_some(Deed::SilenceEndedByClass);
        assert_eq!(deeds(&shell).get(1).copied(), ended);
    }
}

#[test]
fn a_silence_hides_no_other_incident_and_survives_a_restart() {
    let (mut shell, job) = silenced(1_000);
    let stored = shell.incident("inc-0001").clone();
    shell.incidents.restore(shell.now(), stored, Holder::default(), 200, None);
    assert!(is_silenced(&shell, "inc-0001"));
    // It has the same cause, and is a notice as long as the other one reports it.
    shell.found(&job, Finding::Opened(leak(2)));
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    assert_eq!(shell.incident("inc-0002").reported_in.as_deref(), Some("inc-0001"));
    assert!(!is_silenced(&shell, "inc-0001") && !is_silenced(&shell, "inc-0002"));
    // A person who knows of both may silence it again.
    silence(&mut shell, 2_000);
    let now = shell.now();
    shell.incidents.compare("inc-0002", "cap-inc-0002");
    shell.incidents.diagnosed(now, "inc-0002", "cap-inc-0002", Ok(diagnosis(Class::Leak, 3)));
    assert!(is_silenced(&shell, "inc-0001"));
    let expected = [Deed::Silenced, Deed::SilenceEndedByIncident, Deed::Silenced];
    assert_eq!(deeds(&shell), expected);
}

#[test]
fn a_thread_lists_what_was_done_in_order_and_drops_no_note() {
    let (mut shell, _) = silenced(100);
    let mut change = |request: ThreadRequest| {
        let now = shell.now();
        shell.incidents.change_thread(now, "inc-0001", "olga", &request).expect("it is sound");
        shell.now_ns += SECOND;
    };
    let none = ThreadRequest::default;
    change(ThreadRequest { note: Some("first".into()), ..none() });
    change(ThreadRequest { acknowledge: Some(true), assignee: Some("a".into()), ..none() });
    change(ThreadRequest { acknowledge: Some(false), end_silence: true, ..none() });
    change(ThreadRequest { assignee: Some(String::new()), ..none() });
    // What is so already is not listed.
    change(ThreadRequest { acknowledge: Some(false), end_silence: true, ..none() });
    let expected = [
        Deed::Silenced,
        Deed::Noted,
        Deed::Acknowledged,
        Deed::Assigned,
        Deed::Unacknowledged,
        Deed::SilenceEnded,
        Deed::Assigned,
    ];
    let thread = shell.incident("inc-0001").thread.clone();
    let times = thread.entries.iter().map(|entry| entry.wall_ns / SECOND as i64);
    assert_eq!(Vec::from_iter(times), [0, 0, 1, 1, 2, 2, 3]);
    assert_eq!(deeds(&shell), expected);
    let mut incident = shell.incident("inc-0001").clone();
    for at in 0..DEEDS_PER_INCIDENT_MAX {
        let request = ThreadRequest { assignee: Some(at.to_string()), ..none() };
        incident.thread = incident.thread_after(9, "olga", &request).expect("it is sound");
    }
    let thread = &incident.thread;
    assert_eq!((thread.entries.len(), thread.entries_left_out), (DEEDS_PER_INCIDENT_MAX + 1, 6));
    assert_eq!(thread.entries[0].deed, Deed::Noted);
}

#[test]
fn what_is_not_sound_is_refused() {
    let (shell, _) = silenced(100);
    let none = ThreadRequest::default;
    let wall = |ns| ThreadRequest { silence_until_wall_ns: Some(ns), ..none() };
    let step = |step| ThreadRequest { silence_until_step: Some(step), ..none() };
    let check = |request: ThreadRequest, expected: Option<ThreadRefused>| {
        let refused = shell.incident("inc-0001").thread_after(0, "olga", &request).err();
        assert_eq!(refused, expected, "{request:?}");
    };
    check(none(), Some(ThreadRefused::Nothing));
    check(wall(0), Some(ThreadRefused::TimeIsOver));
    check(wall(SILENCE_NS), None);
    check(wall(SILENCE_NS + 1), Some(ThreadRefused::TooLong));
    check(step(20), Some(ThreadRefused::StepIsOver(20)));
    check(step(21), None);
    check(ThreadRequest { end_silence: true, ..step(21) }, Some(ThreadRefused::SeveralEnds));
    let both = ThreadRequest { silence_until_wall_ns: Some(1), ..step(21) };
    check(both, Some(ThreadRefused::SeveralEnds));
    let kind = FailureKind::OutOfMemory;
    let of =
        Failure { rank: 1, device: 0, step: 20, wall_ns: 0, ranks: 4, kind, exit_status: None };
    let failed = Incident { failure: Some(of), ..shell.incident("inc-0001").clone() };
    assert_eq!(failed.thread_after(0, "olga", &step(21)), Err(ThreadRefused::NoSteps));
    let closed = Some(Closed { wall_ns: 0, reason: ClosedReason::AttemptEnded });
    let closed = Incident { closed, ..shell.incident("inc-0001").clone() };
    assert_eq!(closed.thread_after(0, "olga", &step(21)), Err(ThreadRefused::Closed));
}

/// Text with the marks that hide other text more often than by chance.
fn text() -> impl Strategy<Value = String> {
    let hides = ['\u{202e}', '\u{200b}', '\n', '\r', '\t', '\u{1b}', ' '];
    let hides = prop::sample::select(Vec::from(hides));
    let mark = prop_oneof![4 => any::<char>(), 1 => hides];
    let mark = prop::collection::vec(mark, 0..80);
    (mark, 0..60_usize).prop_map(|(marks, times)| String::from_iter(marks).repeat(times))
}

fn request() -> impl Strategy<Value = ThreadRequest> {
    use prop::option::of;
    let silence = (of(0..2 * SILENCE_NS), of(0..200_u64), any::<bool>());
    (of(any::<bool>()), silence, of(text()), of(text())).prop_map(
        |(acknowledge, silence, assignee, note)| ThreadRequest {
            acknowledge,
            silence_until_wall_ns: silence.0,
            silence_until_step: silence.1,
            end_silence: silence.2,
            assignee,
            note,
        },
    )
}

proptest! {
    #[test]
    fn any_requests_keep_a_thread_within_its_bounds(
        requests in prop::collection::vec((text(), request()), 1..60),
    ) {
        let (shell, _) = silenced(100);
        let mut incident = shell.incident("inc-0001").clone();
        for ((who, request), at) in requests.iter().zip(1_i64..) {
            let is_unseen = |of: char| of.is_control() || is_hidden(of);
            prop_assert!(!request.to_string().contains(is_unseen));
            let Ok(thread) = incident.thread_after(at, who, request) else { continue };
            incident.thread = thread;
            // What is sent again, because its answer was lost, changes nothing.
            let again = incident.thread_after(at + 1, who, request);
            prop_assert_eq!(again.as_ref(), Ok(&incident.thread));
            let thread = &incident.thread;
            let notes = thread.notes().count();
            prop_assert!(notes <= NOTES_PER_INCIDENT_MAX);
            prop_assert!(thread.entries.len() - notes <= DEEDS_PER_INCIDENT_MAX);
            let acknowledged = thread.acknowledged.iter().map(|of| &of.who);
            let names = thread.entries.iter().map(|entry| &entry.who).chain(acknowledged);
            for name in names.chain([&thread.assignee]) {
                prop_assert!(name.len() <= PERSON_BYTES_MAX);
                prop_assert!(!name.contains(|of: char| of.is_control() || is_hidden(of)));
            }
            for Entry { deed, text, .. } in &thread.entries {
                let is_note = *deed == Deed::Noted;
                let bytes_max = if is_note { THREAD_NOTE_BYTES_MAX } else { PERSON_BYTES_MAX };
                prop_assert!(text.len() <= bytes_max && !(is_note && text.is_empty()));
                let is_line = |of| is_note && of == '\n';
                let is_bad = |of: char| !is_line(of) && (of.is_control() || is_hidden(of));
                prop_assert!(!text.contains(is_bad), "{text:?}");
            }
        }
    }

    #[test]
    fn a_silence_holds_within_its_time_and_never_again_after_it(
        since_wall_ns in -SILENCE_NS..SILENCE_NS,
        length_ns in any::<i64>(),
        until_step in prop::option::of(any::<u64>()),
        times in prop::collection::vec((0..SILENCE_NS, 0..1_u64 << 40), 1..20),
    ) {
        let end = since_wall_ns.saturating_add(length_ns);
        let silence = Silence {
            until: until_step.map_or(Until::WallNs(end), Until::Step),
            who: String::new(),
            since_wall_ns,
            class: Class::Leak,
            urgency: Urgency::Ticket,
            is_over: false,
        };
        let (mut wall_ns, mut step, mut was_over) = (since_wall_ns, 0, false);
        for (later_ns, more_steps) in times {
            let holds = silence.holds(wall_ns, step);
            prop_assert!(!(holds && was_over));
            let is_before = until_step.map_or(wall_ns < end, |until| step < until);
            let is_early = wall_ns - since_wall_ns < SILENCE_NS;
            prop_assert_eq!(holds, is_before && is_early);
            let ended = Silence { is_over: true, ..silence.clone() };
            prop_assert!(!ended.holds(wall_ns, step));
            was_over = !holds;
            wall_ns += later_ns;
            step += more_steps;
        }
    }
}
