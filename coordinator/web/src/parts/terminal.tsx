// Lines for a terminal, each with what it is for.

import { report } from '../api';
import type { TerminalLine } from '../terminal';
import { Command, Section } from './basics';

/** Nothing in a report: its readers may not reach the coordinator. */
export const InTerminal = ({ of }: { of: TerminalLine[] }) =>
  report ? null : (
    <Section title="In a terminal">
      {of.map(([words, line]) => (
        <div key={line}>
          <p class="soft small">{words}</p>
          <Command line={line} />
        </div>
      ))}
    </Section>
  );
