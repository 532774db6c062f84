#pragma once

#include "fcl_port.h"

extern int storm_hostile; /* damaged frames get a right ICRC */
extern unsigned long long storm_damaged;
extern struct fcl_net storm_dice; /* only its generator is used */

/* Uniform below `below`. */
uint32_t storm_draw(uint32_t below);
