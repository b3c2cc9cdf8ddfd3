//! The alert rules of `deploy/prometheus` say of an incident what `core/src/paging.rs` decides.

use std::fs;

use memtape_core::diagnosis::Class;
use memtape_core::paging::Urgency;
use strum::VariantArray;

/// One rule: its name, its expression, and its severity.
struct Rule<'a> {
    name: &'a str,
    expr: &'a str,
    severity: Urgency,
}

/// The value of a field of a rule.
fn field<'a>(rule: &'a str, name: &str) -> &'a str {
    let value = rule.lines().find_map(|line| line.trim().strip_prefix(name));
    value.unwrap_or_else(|| panic!("no {name:?} in {rule}"))
}

fn rules(text: &str) -> Vec<Rule<'_>> {
    let rule = |rule| {
        let severity = field(rule, "severity: ");
        let severity = severity.parse().unwrap_or_else(|_| panic!("{severity} is no urgency"));
        let name = rule.lines().next().unwrap_or_default();
        Rule { name, expr: field(rule, "expr: "), severity }
    };
    text.split("- alert: ").skip(1).map(rule).collect()
}

impl Rule<'_> {
    /// What stands in quotes behind this matcher.
    fn matched(&self, matcher: &str) -> Option<&str> {
        self.expr.split_once(&format!("{matcher}\""))?.1.split('"').next()
    }

    fn selects(&self, class: Class) -> bool {
        let among = |names: &str| names.split('|').any(|name| name == class.as_str());
        let is_one = self.matched("class=").is_none_or(among);
        is_one
            && self.matched("class=~").is_none_or(among)
            && !self.matched("class!~").is_some_and(among)
    }
}

#[test]
fn every_alert_has_the_severity_of_its_urgency() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/prometheus/rules.yaml");
    let text = fs::read_to_string(path).expect("the rules can be read");
    assert!(!text.contains("{{ $labels.job"), "a name can call all users of a chat");
    let rules = rules(&text);
    assert_eq!(rules.len(), text.matches("severity: ").count());
    for rule in &rules {
        if let Some(urgency) = rule.matched("urgency=") {
            assert_eq!(urgency, rule.severity.as_str(), "{}", rule.name);
        }
    }
    // An incident raises one alert for its urgency, and a notice none.
    let of_incidents = |rule: &&Rule| rule.expr.contains("memtape_incident_active");
    for urgency in Urgency::VARIANTS {
        for class in Class::ALL {
            let fires = |rule: &&Rule| {
                rule.matched("urgency=") == Some(urgency.as_str()) && rule.selects(*class)
            };
            let firing = rules.iter().filter(of_incidents).filter(fires).count();
            let expected = usize::from(*urgency != Urgency::Notice);
            assert_eq!(firing, expected, "{} {}", urgency.as_str(), class.as_str());
        }
    }
}
