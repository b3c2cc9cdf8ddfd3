"""A GAN: the critic steps five times for each step of the generator, with an optimizer each.

The loop of WGAN. What one step of the job is, is a matter of opinion; memory goes round all the same.
"""

import torch
from common import done, network, parallel, start, steps
from torch import nn

BATCH, WIDTH, CRITIC_STEPS = 512, 256, 5


def main():
    rank, device = start()
    generator = parallel(network(WIDTH, layers=6), device)
    critic = parallel(nn.Sequential(network(WIDTH, layers=3), nn.Linear(WIDTH, 1)), device)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    for step in steps(600):
        noise = torch.randn(BATCH, WIDTH, device=device)
        with torch.no_grad():
            fake = generator(noise)
        real = torch.randn(BATCH, WIDTH, device=device)
        (critic(fake) - critic(real)).mean().backward()
        of_critic.step()
        of_critic.zero_grad()
        if step % CRITIC_STEPS == 0:
            (-critic(generator(noise))).mean().backward()
            of_generator.step()
            of_generator.zero_grad()
            of_critic.zero_grad()
    done()


main()
