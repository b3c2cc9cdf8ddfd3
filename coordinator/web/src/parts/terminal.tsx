// Lines for a terminal, each with what it is for.

import type { TerminalLine } from '../terminal';
import { Command } from './basics';

export const TerminalLines = ({ of }: { of: TerminalLine[] }) => (
  <>
    {of.map(([words, line]) => (
      <div key={line}>
        <p class="soft small">{words}</p>
        <Command line={line} />
      </div>
    ))}
  </>
);
