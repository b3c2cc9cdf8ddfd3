//! Which optimizer call ends a training step.
//!
//! PyTorch reports every `Optimizer.step()`, and a training step may have several: two networks,
//! one optimizer per parameter, one per pipeline stage. Counting them all would give ranks with
//! different optimizers different step numbers. So the first optimizer seen is the *primary*, and
//! a step ends when it has stepped. When it does not step for long, because it was replaced, the
//! next optimizer becomes the primary.

/// Calls of other optimizers that are waited for before the primary has stepped a second time: more
/// than one per parameter of the largest models in use.
const OTHERS_FIRST_MAX: u32 = 65_536;

/// How many times the usual number of calls between two of the primary's may pass without it.
const PATIENCE: u32 = 4;

/// Finds step boundaries among optimizer calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepBoundary {
    primary: u64,
    others: u32,
    others_usual: Option<u32>,
}

impl StepBoundary {
    /// An optimizer has stepped; `optimizer` is its identity, not 0. True when a step ended.
    pub fn stepped(&mut self, optimizer: u64) -> bool {
        if optimizer == self.primary || self.primary == 0 {
            if self.primary == optimizer {
                self.others_usual = Some(self.others_usual.unwrap_or(0).max(self.others));
            }
            *self = Self { primary: optimizer, others: 0, ..*self };
            return true;
        }
        self.others = self.others.saturating_add(1);
        let patience = match self.others_usual {
            Some(usual) => usual.saturating_add(1).saturating_mul(PATIENCE),
            None => OTHERS_FIRST_MAX,
        };
        if self.others <= patience {
            return false;
        }
        *self = Self { primary: optimizer, others: 0, others_usual: None };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(calls: &[u64], boundaries: usize) {
        let mut boundary = StepBoundary::default();
        let found = calls.iter().filter(|&&call| boundary.stepped(call)).count();
        assert_eq!(found, boundaries, "{calls:?}");
    }

    #[test]
    fn a_step_ends_with_the_first_optimizer() {
        check(&[7, 7, 7], 3);
        check(&[7, 8, 7, 8, 7, 8], 3);
        check(&[1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 2);
        // one of two is used every third iteration only
        check(&[1, 1, 1, 2, 1, 1, 1, 2], 6);
    }

    #[test]
    fn a_replaced_optimizer_is_replaced_here_too() {
        let mut calls = alloc::vec![1, 1, 1];
        calls.extend([9; 100]);
        // three by the first, then four calls of patience, then one each
        check(&calls, 3 + 100 - PATIENCE as usize);
    }
}
