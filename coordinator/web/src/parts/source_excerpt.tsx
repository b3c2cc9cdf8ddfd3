// The line of code that a report is about, with its neighbours.

import type { Excerpt } from '../api';
import { Section } from './basics';

export const SourceExcerpt = ({ of }: { of: Excerpt }) => (
  <Section title={`The line, in ${of.file}`}>
    {of.is_newer ? (
      <p class="error">This file was changed after the incident: the line may be another.</p>
    ) : null}
    <pre tabIndex={0}>
      {of.lines.map((text, index) => {
        const number = of.first_line + index;
        const isIt = number === of.line;
        return <span class={isIt ? 'culprit' : ''}>{`${isIt ? '▶' : ' '} ${number}  ${text}\n`}</span>;
      })}
    </pre>
  </Section>
);
